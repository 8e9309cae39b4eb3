"""Registration with vLLM: which platform it runs on, and what that platform honours.

CUDA honours ``--attention-backend CUSTOM``. The CPU and Ascend platforms name their backend
themselves whatever the option says, so their choice is wrapped: layers that can be served get this
backend, all others what the platform chooses.
"""

from __future__ import annotations

from fa_triton.vllm.kda import bind_kda
from fa_triton.vllm.selection import log, wrap_platform
from fa_triton.vllm.versions import Platform, check_installed, is_untried

BACKEND = "fa_triton.vllm.backend.FaTritonBackend"
BACKEND_NAME = "CUSTOM"


def register_on_platform(is_on: bool) -> None:
    """Register as the platform allows.

    Args:
        is_on: Whether the user asked for this backend by ``FA_TRITON_VLLM=1``.

    Raises:
        RuntimeError: The user asked for it and the environment cannot serve.
    """
    from vllm.platforms import current_platform

    platform = _platform_of(current_platform)
    if platform is None:
        if is_on:
            log.warning(
                "FA_TRITON_VLLM=1 serves cpu, cuda and npu, this is %s: nothing is changed",
                current_platform.device_type,
            )
        return
    if not is_on:
        if platform == "cuda":
            _offer_on_cuda()
        return
    version = check_installed(platform)
    if is_untried(version):
        log.warning("vLLM %d.%d is newer than what fa_triton was tried with", *version)
    if platform == "npu":
        _register_on_ascend()
        return
    owner = _register_custom()
    if owner != BACKEND:
        raise RuntimeError(
            f"the attention backend {BACKEND_NAME} must be free for FA_TRITON_VLLM=1, got {owner}; "
            "unset FA_TRITON_VLLM, or leave the other plugin out of VLLM_PLUGINS"
        )
    wrap_platform(type(current_platform), BACKEND)
    bind_kda()


def _offer_on_cuda() -> None:
    """Let the engine's option name this backend, if the environment could serve."""
    try:
        check_installed("cuda")
    except RuntimeError as error:
        log.info("--attention-backend %s is not offered by fa_triton: %s", BACKEND_NAME, error)
        return
    owner = _register_custom()
    if owner != BACKEND:
        log.info("--attention-backend %s stays with %s", BACKEND_NAME, owner)


def _register_custom() -> str:
    """Register unless another plugin was first; returns whose the name is."""
    from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

    if not AttentionBackendEnum.CUSTOM.is_overridden():
        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
    return AttentionBackendEnum.CUSTOM.get_path()


def _register_on_ascend() -> None:
    from fa_triton.vllm.ascend import register_on_ascend

    register_on_ascend()


def _platform_of(current_platform: object) -> Platform | None:
    """Name of the platform that vLLM found, None for one that no kernel runs on."""
    kind = getattr(current_platform, "device_type", "")
    is_rocm = getattr(current_platform, "is_rocm", bool)()
    return kind if kind in ("cpu", "npu") or (kind == "cuda" and not is_rocm) else None
