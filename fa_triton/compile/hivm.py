"""What the final HIVM module of a kernel says about it.

HIVM is the last text form before the device assembler: memory is planned (every buffer has an
address), work is split between the cube core (``*_mix_aic``) and the vector cores
(``*_mix_aiv``), and synchronisation is placed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fa_triton.compile.operands import misplaced_operands
from fa_triton.compile.regions import Function, Region, functions

_ELEMENT_BITS = {"index": 64, "bf16": 16}
_CONSTANT = re.compile(r"^(%[\w]+) = (?:arith|llvm\.mlir)\.constant[ (](-?\d+|true|false)")
_BUFFER = re.compile(
    r"hivm\.hir\.pointer_cast\(([^)]*)\).*: memref<([\dx]*)x(\w+)"
    r"(?:, strided<\[([\d, ]*)\][^>]*>)?, #hivm\.address_space<(\w+)>>"
)
_UB_ACCESS = re.compile(
    r"memref\.(?:load|store) .*?\[([^\]]*)\].*: memref<([\dx]*)x\w+.*#hivm\.address_space<ub>"
)
_SPACES = {"ub": "ub", "cbuf": "l1", "cc": "l0c"}
_FACTOR = re.compile(r"multibuffer_unroll_factor = (\d+)")
_SIZES = re.compile(r'dl_entry<"(UB|L1|L0C)_SIZE", (\d+) : i32>')


@dataclass(frozen=True)
class HivmFacts:
    """Facts read from a final HIVM module.

    Attributes:
        core: ``mix`` (cube and vector cores), ``aic`` (cube only) or ``aiv`` (vector only).
        bytes_used: Peak bytes by memory (``ub``, ``l1``, ``l0c``), of one core.
        bytes_limit: Capacity by memory, as the compiler states it.
        mmas: Calls of the matrix unit.
        handoffs: Tiles that the cube core takes from the vector cores as operands.
        scalar_loops: Loops that touch the unified buffer one element at a time.
        pipeline_depth: Tiles in flight in the loops around the mma calls; 1 is no pipeline.
        rows_shared: Both vector cores work, each on its half of the rows.
        misplaced: Matrix calls whose operands do not hold what they ask for.
    """

    core: str
    bytes_used: Mapping[str, int]
    bytes_limit: Mapping[str, int]
    mmas: int
    handoffs: int
    scalar_loops: int
    pipeline_depth: int
    rows_shared: bool
    misplaced: tuple[str, ...]


def read(
    hivm: str, snapshots: Mapping[str, Sequence[str]], messages: str, *, a5: bool
) -> HivmFacts:
    """Read a module.

    Args:
        hivm: Text of the final module.
        snapshots: IR after selected passes; needed for A5.
        messages: The compiler's log.
        a5: Whether the A5 compiler wrote it.
    """
    found = [f for f in functions(hivm) if "_infer_" not in f.name]
    kernels = [f for f in found if "hivm.vector_function" not in f.header]
    cube = [f for f in kernels if f.name.endswith("_mix_aic")]
    vector = [f for f in kernels if f.name.endswith("_mix_aiv")]
    if cube and vector:
        core = "mix"
    else:
        core = "aic" if any("mma_tile" in line.text for f in kernels for line in f.lines) else "aiv"
        cube, vector = (kernels, []) if core == "aic" else ([], kernels)
    if a5:
        depth = _depth_a5(snapshots)
        shared = core == "mix" and _rows_shared_a5(cube, snapshots, messages)
    else:
        depth = _depth(cube, "call @mma_tile")
        shared = core == "mix" and any("to_be_bubbled_slice" in _text(f) for f in vector)
    return HivmFacts(
        core=core,
        bytes_used=_peaks(found),
        bytes_limit={name.lower(): int(bits) // 8 for name, bits in _SIZES.findall(hivm)},
        mmas=sum("call @mma_tile" in line.text for f in cube for line in f.lines),
        handoffs=sum(_handoffs(f) for f in cube)
        + sum("call @copy_ubuf_to_cbuf" in line.text for f in vector for line in f.lines),
        scalar_loops=sum(_scalar_loops(f) for f in vector),
        pipeline_depth=depth,
        rows_shared=shared,
        misplaced=tuple(text for f in cube for text in misplaced_operands(f)),
    )


def _text(function: Function) -> str:
    regions: list[str] = []
    seen: set[int] = set()
    for line in function.lines:
        region: Region | None = line.region
        while region is not None and id(region) not in seen:
            seen.add(id(region))
            regions.append(region.attributes)
            region = region.parent
    return "\n".join([line.text for line in function.lines] + regions)


def _peaks(found: Sequence[Function]) -> dict[str, int]:
    peaks = dict.fromkeys(_SPACES.values(), 0)
    for function in found:
        constants: dict[str, int] = {}
        for line in function.lines:
            constant = _CONSTANT.match(line.text)
            if constant and constant[2].lstrip("-").isdigit():
                constants[constant[1]] = int(constant[2])
                continue
            buffer = _BUFFER.search(line.text)
            if buffer is None or buffer[5] not in _SPACES:
                continue
            size = _buffer_bytes(buffer[2], buffer[3], buffer[4])
            for address in buffer[1].split(","):
                end = constants.get(address.strip(), 0) + size
                peaks[_SPACES[buffer[5]]] = max(peaks[_SPACES[buffer[5]]], end)
    return peaks


def _buffer_bytes(shape: str, element: str, strides: str | None) -> int:
    sizes = [int(size) for size in shape.split("x") if size]
    bits = _ELEMENT_BITS.get(element) or int(re.sub(r"\D.*", "", element.lstrip("ufis")) or 32)
    if strides:
        steps = [int(step) for step in strides.split(",")]
        elements = 1 + sum((n - 1) * step for n, step in zip(sizes, steps, strict=True))
    else:
        elements = math.prod(sizes)
    return math.ceil(elements * bits / 8)


def _depth(found: Sequence[Function], mma: str) -> int:
    """Depth of the loops around the mma calls: the smallest counts, no loop is depth 1."""
    depths = []
    for function in found:
        for line in function.lines:
            if mma not in line.text:
                continue
            loops = list(line.region.loops())
            if not loops:
                continue
            factors = [_FACTOR.search(loop.attributes) for loop in loops]
            depths.append(max((int(f[1]) for f in factors if f), default=1))
    return min(depths, default=1)


def _depth_a5(snapshots: Mapping[str, Sequence[str]]) -> int:
    dumps = [d for d in snapshots.get("cv-pipelining", ()) if "hivm.hir.mmadL1" in d]
    if not dumps or "cv_unrolled_loop" not in dumps[-1]:
        return 1
    return _depth(functions(dumps[-1]), "hivm.hir.mmadL1")


def _rows_shared_a5(
    cube: Sequence[Function], snapshots: Mapping[str, Sequence[str]], messages: str
) -> bool:
    # A result tile that goes to the vector cores must be split between them by rows.
    to_vector = [
        line.text
        for f in cube
        for line in f.lines
        if "call @fixpipe" in line.text and "_ubuf" in line.text.partition("(")[0]
    ]
    if any("dual" not in text.partition("(")[0] for text in to_vector):
        return False
    if re.search(r"\[hivm-bind-sub-block\] revert|revert ", messages):
        return False
    dumps = [d for d in snapshots.get("hivm-bind-sub-block", ()) if "_infer_" not in d[:300]]
    return bool(dumps) and "mapping = [#hivm.sub_block<x>]" in dumps[-1]


_VALUE = re.compile(r"%[\w#]+")
_VIEW_OPERATIONS = ("memref.", "builtin.unrealized_conversion_cast", "llvm.", "arith.select")


def _handoffs(cube: Function) -> int:
    """Count the loads of the cube core whose source is the workspace, not a tensor argument."""
    workspace = re.search(r"(%arg\d+): memref<[^{]*\{[^}]*arg_type<workspace>", cube.header)
    if workspace is None:
        return 0
    count = 0
    for at, line in enumerate(cube.lines):
        if "call @nd2nz" not in line.text and "call @load_gm_to_cbuf" not in line.text:
            continue
        values = _VALUE.findall(line.text.partition("(")[2])
        count += bool(values) and _root(cube, values[0], at) == workspace[1]
    return count


def _root(function: Function, value: str, at: int) -> str:
    """Follow views back to the argument they look at."""
    while True:
        position = function.definition(value, at)
        if position is None:
            return value
        operation = function.lines[position].text.partition(" = ")[2]
        operands = _VALUE.findall(operation)
        if not operation.startswith(_VIEW_OPERATIONS) or not operands:
            return value
        # A select chooses between two buffers of one kind: the first one tells the kind.
        value = operands[1] if operation.startswith("arith.select") else operands[0]
        at = position


def _scalar_loops(vector: Function) -> int:
    """Count the loops, or blocks, that touch the unified buffer at a computed index."""
    constants: set[str] = set()
    places: set[tuple[int, str]] = set()
    for line in vector.lines:
        constant = _CONSTANT.match(line.text)
        if constant:
            constants.add(constant[1])
            continue
        access = _UB_ACCESS.search(line.text)
        # A buffer of one element is a scalar argument of a vector instruction, not a loop.
        if access is None or set(access[2].split("x")) == {"1"}:
            continue
        indices = [index.strip() for index in access[1].split(",") if index.strip()]
        if any(index not in constants for index in indices):
            places.add((id(line.region), line.block))
    return len(places)
