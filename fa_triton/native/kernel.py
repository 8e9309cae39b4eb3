"""One kernel's compiled variants and their launches on the CPU."""

from __future__ import annotations

import ctypes
import operator
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from triton.runtime.jit import JITFunction

from fa_triton.native.arguments import Arguments
from fa_triton.native.compiler import Variant, compile_variant
from fa_triton.native.threads import num_threads, run_on_threads

_MAX_PROGRAMS = 2**31 - 1
# Programs a thread takes at once: few enough to balance, many enough to keep the counter cold.
_SHARES_PER_THREAD = 16

_DRIVER_TYPE = ctypes.CFUNCTYPE(
    None,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_int64,
    ctypes.c_int64,
    ctypes.c_int32,
    ctypes.c_int32,
    ctypes.c_int32,
)

Grid = int | Sequence[int] | Callable[[dict[str, Any]], int | Sequence[int]]


@dataclass(frozen=True)
class CompileEvent:
    """A variant starts (``seconds`` is None) or finishes being compiled or loaded."""

    kernel: str
    seconds: float | None = None
    from_cache: bool = False


@dataclass
class CompileStatistics:
    """What this process compiled so far.

    Attributes:
        compiled: Variants compiled.
        compile_seconds: Time that took.
        cache_hits: Variants loaded from the disk cache.
        load_seconds: Time that took.
    """

    compiled: int = 0
    compile_seconds: float = 0.0
    cache_hits: int = 0
    load_seconds: float = 0.0


Listener = Callable[[CompileEvent], None]

_statistics = CompileStatistics()
_listeners: list[Listener] = []


def statistics() -> CompileStatistics:
    """A copy of this process's compile statistics."""
    return CompileStatistics(**vars(_statistics))


def add_listener(listener: Listener) -> Callable[[], None]:
    """Call ``listener`` when a variant starts and finishes compiling.

    Returns:
        A function that removes the listener.
    """
    _listeners.append(listener)
    return lambda: _listeners.remove(listener)


def _notify(event: CompileEvent) -> None:
    for listener in tuple(_listeners):
        listener(event)


@dataclass(frozen=True)
class _Launchable:
    function: Callable[..., None]
    pack: Callable[[list[Any]], bytes]
    variant: Variant = field(repr=False)


def _compile(arguments: Arguments, values: Sequence[Any]) -> _Launchable:
    specialization = arguments.specialize(values)
    name = arguments.kernel.__name__
    _notify(CompileEvent(name))
    start = time.perf_counter()
    variant = compile_variant(arguments.kernel, specialization)
    seconds = time.perf_counter() - start
    if variant.from_cache:
        _statistics.cache_hits += 1
        _statistics.load_seconds += seconds
    else:
        _statistics.compiled += 1
        _statistics.compile_seconds += seconds
    _notify(CompileEvent(name, seconds, variant.from_cache))
    return _Launchable(
        function=_DRIVER_TYPE(variant.code.address),
        pack=arguments.packer(specialization, variant.arguments),
        variant=variant,
    )


class BoundLaunch:
    """A launch whose arguments are known but for the addresses of its tensors.

    Args:
        launchable: The compiled variant.
        packed: Numbers to pack, as ``Arguments.launch_key`` gives them.
        pointers: Position, name and whether the address is a multiple of 16, None where that does
            not matter, of every tensor.
        programs: Programs per axis.
    """

    def __init__(
        self,
        launchable: _Launchable,
        packed: list[Any],
        pointers: Sequence[tuple[int, str, bool | None]],
        programs: tuple[int, int, int],
    ) -> None:
        self._launchable = launchable
        self._packed = packed
        self._pointers = tuple(pointers)
        self._programs = programs

    def fix(self, addresses: Mapping[str, int]) -> BoundLaunch | None:
        """Keep the addresses of some tensors, which must outlive the new launch.

        Returns:
            A launch that takes the other ones; None if an address is aligned otherwise or is 0.
        """
        packed = self._packed[:]
        if not _exchange(
            packed, [each for each in self._pointers if each[1] in addresses], addresses
        ):
            return None
        others = [each for each in self._pointers if each[1] not in addresses]
        return BoundLaunch(self._launchable, packed, others, self._programs)

    def launch(self, addresses: Mapping[str, int]) -> bool:
        """Run with other tensors of the same dtypes, shapes and strides on the CPU.

        Args:
            addresses: Of every tensor, by name; the caller keeps the tensors until it returns.

        Returns:
            False if nothing was run, since an address is aligned otherwise or is 0.
        """
        packed = self._packed[:]
        if not _exchange(packed, self._pointers, addresses):
            return False
        _run(self._launchable, packed, self._programs)
        return True


def _exchange(
    packed: list[Any],
    pointers: Sequence[tuple[int, str, bool | None]],
    addresses: Mapping[str, int],
) -> bool:
    """Put addresses in their positions; False if one does not fit the compiled variant."""
    for position, name, is_aligned in pointers:
        address = packed[position] = addresses[name]
        if not address or (is_aligned is not None and (not address & 15) != is_aligned):
            return False
    return True


def _run(launchable: _Launchable, packed: list[Any], programs: tuple[int, int, int]) -> None:
    slots = launchable.pack(packed)
    nx, ny, nz = programs
    total = nx * ny * nz
    threads = 1 if launchable.variant.serial or total == 1 else min(num_threads(), total)
    counter = ctypes.c_int64(0)
    chunk = total if threads == 1 else max(1, total // (threads * _SHARES_PER_THREAD))
    function, address = launchable.function, ctypes.addressof(counter)
    if threads == 1:
        function(slots, address, chunk, total, nx, ny, nz)
    else:
        run_on_threads(lambda: function(slots, address, chunk, total, nx, ny, nz), threads)


class NativeKernel:
    """Launches one kernel on CPU tensors.

    Args:
        kernel: The ``@triton.jit`` function.
    """

    def __init__(self, kernel: JITFunction) -> None:
        self.arguments = Arguments(kernel)
        self._variants: dict[tuple[Any, ...], _Launchable] = {}
        self._lock = threading.Lock()

    @property
    def num_variants(self) -> int:
        """Variants compiled or loaded so far."""
        return len(self._variants)

    def launch(self, grid: Grid, args: Sequence[Any], kwargs: Mapping[str, Any]) -> None:
        """Run the kernel over a grid.

        Args:
            grid: Programs per axis: an integer, up to three of them, or a function of the
                arguments by name that returns either. 0 runs nothing.
            args: Positional arguments.
            kwargs: Arguments by name; others must have been removed.

        Raises:
            TypeError, ValueError: An argument or the grid is not acceptable.
            RuntimeError: A tensor is not on the CPU, or the kernel does not lower.
            NotImplementedError: The kernel calls what has no CPU implementation.
        """
        arguments = self.arguments
        values = arguments.bind(args, kwargs)
        key, packed = arguments.launch_key(values)
        if callable(grid):
            grid = grid(dict(zip(arguments.names, values, strict=True)))
        nx, ny, nz = _three(grid, arguments.kernel.__name__)
        total = nx * ny * nz
        if not total:
            return
        if total > _MAX_PROGRAMS:
            raise ValueError(f"`grid` must have fewer than 2**31 programs, got {total}")
        _run(self._launchable(key, values), packed, (nx, ny, nz))

    def bind(self, grid: tuple[int, ...], kwargs: Mapping[str, Any]) -> BoundLaunch:
        """Prepare a launch for repetition with other tensors.

        Args:
            grid: Programs per axis, at least one.
            kwargs: All arguments by name; integers must not change, nor which tensors are given.

        Raises:
            TypeError, ValueError, RuntimeError, NotImplementedError: As :meth:`launch`.
        """
        values = self.arguments.bind((), kwargs)
        key, packed = self.arguments.launch_key(values)
        launchable = self._launchable(key, values)
        programs = _three(grid, self.arguments.kernel.__name__)
        return BoundLaunch(launchable, packed, self.arguments.pointers(values), programs)

    def _launchable(self, key: tuple[Any, ...], values: Sequence[Any]) -> _Launchable:
        launchable = self._variants.get(key)
        if launchable is None:
            with self._lock:
                launchable = self._variants.get(key)
                if launchable is None:
                    launchable = self._variants[key] = _compile(self.arguments, values)
        return launchable


def _three(grid: Any, kernel: str) -> tuple[int, int, int]:
    sizes = tuple(grid) if isinstance(grid, tuple | list) else (grid,)
    if not 1 <= len(sizes) <= 3:
        raise ValueError(f"kernel `{kernel}`: `grid` must have 1 to 3 axes, got {grid!r}")
    try:
        nx, ny, nz = map(operator.index, (*sizes, 1, 1)[:3])
    except TypeError:
        raise TypeError(f"kernel `{kernel}`: `grid` must hold integers, got {grid!r}") from None
    if nx < 0 or ny < 0 or nz < 0:
        raise ValueError(f"kernel `{kernel}`: `grid` must not be negative, got {grid!r}")
    return nx, ny, nz
