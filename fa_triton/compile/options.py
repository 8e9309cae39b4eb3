"""Launch options of triton-ascend, and the compiler flags they turn into.

The launcher passes :func:`launch_options` on devices and the compile check compiles with the
same, so that both see one program.
"""

from __future__ import annotations

from collections.abc import Mapping

from fa_triton.targets import Target

# Launch option -> flag of bishengir-compile, as triton-ascend maps them.
_FLAGS = {
    "multibuffer": "enable-auto-multi-buffer",
    "enable_auto_bind_sub_block": "enable-auto-bind-sub-block",
    "enable_hivm_auto_cv_balance": "enable-hivm-auto-cv-balance",
    "unit_flag": "enable-hivm-unit-flag-sync",
    "inject_barrier_all": "enable-hivm-inject-barrier-all-sync",
    "limit_auto_multi_buffer_only_for_local_buffer": (
        "limit-auto-multi-buffer-only-for-local-buffer"
    ),
    "limit_auto_multi_buffer_of_local_buffer": "limit-auto-multi-buffer-of-local-buffer",
    "set_workspace_multibuffer": "set-workspace-multibuffer",
    "tile_mix_vector_loop": "tile-mix-vector-loop",
    "tile_mix_cube_loop": "tile-mix-cube-loop",
}
# Known to the A2/A3 compiler path of triton-ascend only.
_FLAGS_A2_A3 = {
    "sync_solver": "enable-hivm-graph-sync-solver",
    "inject_block_all": "enable-hivm-inject-block-all-sync",
    "disable_auto_inject_block_sync": "disable-auto-inject-block-sync",
}
# Options of the launch itself or of the lowering to Linalg: no flag of the device compiler.
_NO_FLAG = frozenset(
    {"num_warps", "num_stages", "num_ctas", "debug", "stream", "compile_mode"}
    | {"compile_on_910_95", "enable_select_analysis", "enable_linearize"}
    | {"enable_nd2nz_on_vector", "force_simt_template", "parallel_mode"}
)


def launch_options(target: Target, options: Mapping[str, object] | None = None) -> dict:
    """Complete a kernel's launch options for a target.

    Args:
        target: Device to run on or compile for.
        options: What the kernel's config asks for; wins over the defaults.

    Returns:
        Keyword arguments of ``kernel[grid](...)`` on that device. A5 needs ``multibuffer`` said
        aloud (some versions of triton-ascend default it to False there) and, on triton-ascend
        3.2.0, to be told that it is an A5.
    """
    chosen: dict[str, object] = {"multibuffer": True, "enable_auto_bind_sub_block": True}
    if target.is_a5:
        chosen |= {"compile_on_910_95": True, "enable_select_analysis": True}
    return chosen | dict(options or {})


def compiler_flags(target: Target, options: Mapping[str, object]) -> list[str]:
    """Translate launch options to flags of the device compiler.

    Args:
        target: Device to compile for.
        options: Result of :func:`launch_options`.

    Raises:
        ValueError: An option that triton-ascend does not know on this target.
    """
    known = _FLAGS if target.is_a5 else _FLAGS | _FLAGS_A2_A3
    unknown = sorted(set(options) - set(known) - _NO_FLAG)
    if unknown:
        raise ValueError(
            f"`options` must be among {', '.join(sorted(set(known) | _NO_FLAG))} "
            f"for {target.name}, got {', '.join(unknown)}"
        )
    return [
        f"--{flag}={options[name]}" for name, flag in known.items() if options.get(name) is not None
    ]
