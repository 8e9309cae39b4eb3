"""vLLM on Ascend: vllm-ascend's backend with attention and cache update by these kernels.

Only ``register_on_ascend`` is imported here; ``backend.py`` and what it uses import vllm-ascend.
"""

from fa_triton.vllm.ascend.registration import register_on_ascend

__all__ = ["register_on_ascend"]
