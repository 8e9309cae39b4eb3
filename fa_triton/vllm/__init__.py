"""Attention of vLLM through these kernels; see ``docs/vllm.md``.

``register`` is the entry point of the group ``vllm.general_plugins``. Modules that import vLLM are
``plugin.py``, ``backend.py`` and those in ``ascend/``; the others are used, and tested, without it.
"""

from __future__ import annotations


def register() -> None:
    """Offer the backend to vLLM; called by vLLM in each of its processes, maybe several times.

    With ``FA_TRITON_VLLM=1`` every layer that can be served is served here, on whatever platform
    vLLM runs. Without it nothing changes, but that ``--attention-backend CUSTOM`` means this
    backend on CUDA, where the engine has that option.

    Raises:
        ValueError: ``FA_TRITON_VLLM`` is neither 0 nor 1.
        RuntimeError: It is 1 and the environment cannot serve; the message says what to install.
    """
    from fa_triton.vllm.plugin import register_on_platform
    from fa_triton.vllm.settings import is_switched_on

    register_on_platform(is_switched_on())
