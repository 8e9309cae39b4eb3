"""``runner(kernel)[grid](...)``: one call site for npu, cuda and cpu tensors.

Kernels must be imported after this module: in interpreter mode it has to switch Triton over
before Triton is imported.
"""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch

from fa_triton.device import CPU_MODE_VARIABLE, cpu_mode, device_info

if TYPE_CHECKING:
    from fa_triton.native.kernel import BoundLaunch, Grid, NativeKernel

logger = logging.getLogger(__name__)

_INTERPRET_VARIABLE = "TRITON_INTERPRET"

_COMMON_OPTIONS = frozenset({"num_warps", "num_stages", "num_ctas", "enable_fp_fusion", "debug"})
_CUDA_OPTIONS = _COMMON_OPTIONS | {"maxnreg", "cluster_dims"}
_NPU_OPTIONS = _COMMON_OPTIONS | {
    "compile_mode",
    "compile_on_910_95",
    "disable_auto_inject_block_sync",
    "enable_auto_bind_sub_block",
    "enable_hivm_auto_cv_balance",
    "enable_linearize",
    "enable_nd2nz_on_vector",
    "enable_select_analysis",
    "inject_barrier_all",
    "inject_block_all",
    "limit_auto_multi_buffer_of_local_buffer",
    "limit_auto_multi_buffer_only_for_local_buffer",
    "multibuffer",
    "set_workspace_multibuffer",
    "sync_solver",
    "tile_mix_cube_loop",
    "tile_mix_vector_loop",
    "unit_flag",
}
LAUNCH_OPTIONS = _CUDA_OPTIONS | _NPU_OPTIONS


def _switch_to_interpreter() -> None:
    """Make Triton define kernels for its interpreter, which it decides at import."""
    if cpu_mode() == "interpreter" and "triton" not in sys.modules:
        os.environ[_INTERPRET_VARIABLE] = "1"


_switch_to_interpreter()


class Runner:
    """Launches one kernel on whatever device its tensors are on.

    Args:
        kernel: A ``@triton.jit`` function.
    """

    def __init__(self, kernel: Any) -> None:
        self.kernel = kernel
        self._names = frozenset(kernel.arg_names)
        self._native: NativeKernel | None = None

    def __getitem__(self, grid: Grid) -> functools.partial[None]:
        """Choose the grid: an integer, up to three of them, or a function of the arguments."""
        return functools.partial(self._launch, grid)

    def _launch(self, grid: Grid, *args: Any, variant: str = "", **kwargs: Any) -> None:
        """Run the kernel.

        Args:
            grid: Programs per axis.
            *args: The kernel's positional arguments.
            variant: Key of the variant, for the log: compile or debug this one alone.
            **kwargs: The kernel's arguments by name, and launch options.
        """
        options = kwargs.keys() - self._names
        if not options <= LAUNCH_OPTIONS:
            unknown = ", ".join(f"`{name}`" for name in sorted(options - LAUNCH_OPTIONS))
            raise TypeError(
                f"kernel `{self.kernel.__name__}` must get arguments it has or launch options, "
                f"got {unknown}"
            )
        device = _device_of(args, kwargs)
        if variant and logger.isEnabledFor(logging.DEBUG):
            logger.debug("launch %s on %s", variant, device.type)
        if device.type == "cpu":
            for name in options:
                del kwargs[name]
            self._launch_on_cpu(grid, args, kwargs)
        else:
            self._launch_on_device(grid, args, kwargs, device)

    def bind(self, grid: tuple[int, ...], **kwargs: Any) -> BoundLaunch | None:
        """Prepare a launch that was made before for repetition with other tensors.

        Returns:
            The launch; None where nothing is gained: on devices, and in the interpreter.
        """
        native = self._native
        if native is None:
            return None
        return native.bind(grid, {n: v for n, v in kwargs.items() if n in self._names})

    def _launch_on_cpu(self, grid: Grid, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        native = self._native
        if native is None:
            if _is_interpreted(self.kernel):
                from fa_triton.interpreter import launch
                from fa_triton.native.arguments import plain

                plain_kwargs = {name: plain(value) for name, value in kwargs.items()}
                launch(self.kernel, grid, [plain(value) for value in args], plain_kwargs)
                return
            from fa_triton.native.kernel import NativeKernel

            native = self._native = NativeKernel(self.kernel)
        native.launch(grid, args, kwargs)

    def _launch_on_device(
        self, grid: Any, args: tuple[Any, ...], kwargs: dict[str, Any], device: torch.device
    ) -> None:
        from fa_triton.native.arguments import plain

        understood = _NPU_OPTIONS if device.type == "npu" else _CUDA_OPTIONS
        passed = {
            name: plain(value)
            for name, value in kwargs.items()
            if name in self._names or name in understood
        }
        if device.type == "npu":
            passed = {**_ascend_options(device), **passed}
        grid = (grid,) if isinstance(grid, int) else grid
        if not callable(grid) and 0 in grid:
            return
        self.kernel[grid](*map(plain, args), **passed)


@functools.cache
def runner(kernel: Any) -> Runner:
    """The launcher of a kernel; the same one at every call.

    Args:
        kernel: A ``@triton.jit`` function.
    """
    return Runner(kernel)


def _device_of(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    for value in args:
        if isinstance(value, torch.Tensor):
            return value.device
    for value in kwargs.values():
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def _is_interpreted(kernel: Any) -> bool:
    """Whether Triton made the kernel for its interpreter, checked against the mode asked for.

    Raises:
        RuntimeError: The mode and the way the kernel was made differ.
    """
    from triton.runtime.jit import JITFunction

    interpreted = not isinstance(kernel, JITFunction)
    wanted = cpu_mode() == "interpreter"
    if wanted and not interpreted:
        raise RuntimeError(
            f"`{_INTERPRET_VARIABLE}` must be 1 before triton is imported for "
            f"{CPU_MODE_VARIABLE}=interpreter, got kernels made for the compiler; set both in "
            "the environment of the process"
        )
    if interpreted and not wanted:
        raise RuntimeError(
            f"`{CPU_MODE_VARIABLE}` must be interpreter when {_INTERPRET_VARIABLE}=1, got "
            f"{cpu_mode()}"
        )
    return interpreted


@functools.cache
def _ascend_options(device: torch.device) -> dict[str, Any]:
    """Options the compile check compiles with, after the fix that an Ascend 950 needs on 3.2.0."""
    from triton.backends.ascend import compiler

    from fa_triton.compile import mix_mode
    from fa_triton.compile.options import launch_options
    from fa_triton.targets import target

    chip = target(device_info(device).target)
    if chip.is_a5:
        mix_mode.install()
        if hasattr(compiler._parse_linalg_metadata, "__wrapped__"):
            _use_own_triton_cache()
    known = compiler.NPUOptions.__dataclass_fields__
    return {name: value for name, value in launch_options(chip).items() if name in known}


@functools.cache
def _use_own_triton_cache() -> None:
    """Triton's cache key does not see the fix: code compiled with it gets its own folder."""
    from triton.runtime.cache import default_cache_dir

    folder = os.environ.get("TRITON_CACHE_DIR", "").strip() or default_cache_dir()
    os.environ["TRITON_CACHE_DIR"] = os.path.join(folder, "fa_triton_mix_mode")
