"""The instruction stream of one core: what the interpreter writes and the timeline replays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Pipe: TypeAlias = Literal["S", "V", "M", "MTE1", "MTE2", "MTE3", "FIX", "ALL"]
# Whose memory a transfer touches: the caller's tensors, or the workspace that the compiler adds,
# through which cube and vector cores hand each other tiles on A2 and A3.
Memory: TypeAlias = Literal["caller", "workspace", "chip"]


@dataclass(frozen=True)
class Scalar:
    """Scalar instructions between two others.

    Attributes:
        operations: Arithmetic and branches.
        calls: Calls of library functions.
        loads: Loads from global memory.
    """

    operations: int
    calls: int = 0
    loads: int = 0


@dataclass(frozen=True)
class Transfer:
    """Bytes over a path between two memories.

    Attributes:
        pipe: That moves them.
        path: Row of the cost table, ``gm_to_l1``.
        call: Library function.
        bytes: Moved.
        rows: Bursts: rows that do not lie behind each other in the memory outside.
        memory: Whose memory lies at the far end.
        is_write: Whether the far end is written.
    """

    pipe: Pipe
    path: str
    call: str
    bytes: int
    rows: int = 1
    memory: Memory = "chip"
    is_write: bool = False


@dataclass(frozen=True)
class Vector:
    """A library function of the vector unit.

    Attributes:
        kind: Row of the cost table, ``vexp``.
        call: Library function.
        repeats: Steps of 256 bytes.
        instructions: Instructions that issue them.
        reductions: Steps that fold one register, beside the repeats.
        broadcasts: Steps that spread one value per row.
    """

    kind: str
    call: str
    repeats: int
    instructions: int = 1
    reductions: int = 0
    broadcasts: int = 0

    pipe: Pipe = "V"


@dataclass(frozen=True)
class Registers:
    """A vector function of an Ascend 950, in instructions on registers.

    Attributes:
        call: Its name.
        loads: Loads of a register.
        stores: Stores of one.
        simple: Arithmetic, conversions, shuffles.
        special: Exponentials, logarithms, divisions, roots.
        reductions: Folds of one register.
    """

    call: str
    loads: int
    stores: int
    simple: int
    special: int
    reductions: int

    pipe: Pipe = "V"


@dataclass(frozen=True)
class Multiply:
    """One pass of the cube.

    Attributes:
        call: Library function.
        macs: Multiply-adds as the kernel asks for them; the cube computes whole steps.
        steps: Blocks of 16 x 16 results and 32 bytes of the inner dimension.
        cycles_per_step: 2 for fp32, else 1.
    """

    call: str
    macs: int
    steps: int
    cycles_per_step: int = 1

    pipe: Pipe = "M"


@dataclass(frozen=True)
class Flag:
    """``set_flag`` or ``wait_flag`` between two pipes of one core."""

    is_set: bool
    source: Pipe
    target: Pipe
    event: str


@dataclass(frozen=True)
class Barrier:
    """Wait until a pipe, or all of them, has finished."""

    pipe: Pipe


@dataclass(frozen=True)
class CoreSync:
    """``sync_block_set`` or ``sync_block_wait`` between a cube core and its two vector cores.

    Attributes:
        is_set: Set or wait.
        source: Pipe whose work the flag announces.
        target: Pipe that waits; S on A2 and A3.
        flag: Number.
    """

    is_set: bool
    source: Pipe
    target: Pipe
    flag: int


Work: TypeAlias = Transfer | Vector | Registers | Multiply
Event: TypeAlias = Scalar | Work | Flag | Barrier | CoreSync
