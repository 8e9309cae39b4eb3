"""What the plugin does on Ascend."""

from __future__ import annotations

from fa_triton.vllm.ascend.needs import reason_on_ascend
from fa_triton.vllm.kda import bind_kda
from fa_triton.vllm.selection import wrap_platform

BACKEND = "fa_triton.vllm.ascend.backend.FaTritonAscendBackend"
# The only choice of vllm-ascend that is replaced; those for MLA, FA3 or 310P stay.
PLAIN_BACKEND = "vllm_ascend.attention.attention_v1.AscendAttentionBackend"


def register_on_ascend() -> None:
    """Wrap the choice of the NPU platform and rebind its KDA calls.

    The platform ignores ``--attention-backend`` and registers ``CUSTOM`` for itself, so its choice
    is wrapped. Does nothing the second time.
    """
    from vllm.platforms import current_platform

    wrap_platform(
        type(current_platform), BACKEND, reason_of=reason_on_ascend, replaces=PLAIN_BACKEND
    )
    bind_kda()
