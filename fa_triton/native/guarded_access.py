"""Masked accesses that touch no masked-off lane.

Where a mask is no interval or a load goes through indices, the Linalg IR reads every lane and
selects afterwards, and stores read the target, select, and write everything back. On the NPU
that is a matter of speed; on a CPU a masked-off index may point anywhere, and writing back an
untouched lane undoes what another thread stored there. The rewrites here put the mask around the
access itself:

    load through indices   ``scf.if`` around the element's memref.load
    row or tile copy       ``scf.if`` around the row where the mask is constant along it,
                           otherwise element by element
    read-modify-write      element-wise guarded stores, no read

Selects stay: only what they discard is no longer read. A mask defined below the access, and a
loaded tensor that is used without the mask as well, leave the access as it was.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

from fa_triton.native.linalg_edits import definition

_SELECT = re.compile(
    r"^ *%\w+ = arith\.select (%[\w#]+), (%[\w#]+), (%[\w#]+) ?(?:\{[^}]*\} )?: "
    r"(tensor<[\dx]+xi1>), (tensor<[^>]*>)$",
    re.M,
)
_ELEMENT_LOAD = re.compile(
    r"^( *)(%\w+) = (memref\.load [^\n]* : memref<1x(\w+)[^\n]*)\n"
    r"(?= *%\w+ = tensor\.insert \2 into %\w+\[([^\]]*)\])",
    re.M,
)
_TO_TENSOR = re.compile(r" %\w+ = bufferization\.to_tensor (%\w+) ")
_BROADCAST = re.compile(
    r" %\w+ = linalg\.broadcast ins\((%\w+) : (tensor<[^>]*>)\) outs\(.*\)"
    r" dimensions = \[([\d, ]+)\]"
)
_COPY = re.compile(
    r"^( *)memref\.copy (%\w+), (%\w+) : memref<((?:\d+x)+)(\w+)([^\n]*?)> to (memref<[^\n]*>)\n",
    re.M,
)
_SUBVIEW = re.compile(
    r" %\w+ = memref\.subview (%\w+)\[([^\]]*)\] \[([\d, ]+)\] \[([1, ]+)\] : (memref<[^>]*>)"
)
_LOAD_LOOP = "ExtractedLoadOrStore"
_STORE_BACK = re.compile(
    r"^( *)bufferization\.materialize_in_destination (%\w+) in writable (%\w+)"
    r" : \((tensor<((?:\d+x)+)(\w+)>), (memref<.*>)\) -> \(\)\n",
    re.M,
)


class _Text:
    """A module under edit: definitions, uses and names that are still free."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.numbers = itertools.count()

    def define_at(self, name: str, use: int) -> int:
        """Start of the nearest definition of ``name`` above ``use``, -1 for a block argument."""
        return self.text.rfind(f" {name} = ", 0, use)

    def uses(self, name: str, start: int) -> int:
        """How often ``name``, defined at ``start``, is used."""
        body = start + len(name) + 3
        end = self.text.find(f" {name} = ", body)
        return len(re.findall(re.escape(name) + r"\b", self.text[body : end if end > 0 else None]))

    def replace(self, start: int, end: int, lines: Sequence[str]) -> None:
        """Replace a stretch of whole lines."""
        self.text = self.text[:start] + "".join(f"{line}\n" for line in lines) + self.text[end:]


def _zero(element: str) -> str:
    return "0.0" if element[0] in "fb" else "false" if element == "i1" else "0"


def _dimensions(shape: str) -> list[int]:
    return [int(extent) for extent in shape.rstrip("x").split("x")]


def _nest(indent: str, tag: str, extents: Sequence[int], body: Sequence[str]) -> Iterator[str]:
    """Loops with counters ``%<tag>_i<d>`` around a body."""
    yield f"{indent}%{tag}_0 = arith.constant 0 : index"
    yield f"{indent}%{tag}_1 = arith.constant 1 : index"
    for d, extent in enumerate(extents):
        yield f"{indent}%{tag}_n{d} = arith.constant {extent} : index"
        yield f"{indent}scf.for %{tag}_i{d} = %{tag}_0 to %{tag}_n{d} step %{tag}_1 {{"
    yield from (indent + line for line in body)
    for _ in extents:
        yield f"{indent}}}"


def _guard_element_loads(module: _Text, loop: int, mask: str, mask_type: str) -> None:
    """Put the mask around the loads of the loop nest that starts at ``loop``."""
    line_start = module.text.rfind("\n", 0, loop) + 1
    indent = " " * (loop + 1 - line_start)
    end = module.text.find(f"\n{indent}}}", loop)
    closing = module.text[end + 1 : module.text.find("\n", end + 1)]
    if _LOAD_LOOP not in closing:  # a loop of the kernel, whose accesses have their own masks
        return

    def guard(match: re.Match[str]) -> str:
        space, name, load, element, index = match.groups()
        tag = f"guard{next(module.numbers)}"
        return (
            f"{space}%{tag}_m = tensor.extract {mask}[{index}] : {mask_type}\n"
            f"{space}{name} = scf.if %{tag}_m -> ({element}) {{\n"
            f"{space}  %{tag}_v = {load}\n"
            f"{space}  scf.yield %{tag}_v : {element}\n"
            f"{space}}} else {{\n"
            f"{space}  %{tag}_z = arith.constant {_zero(element)}"
            f"{'' if element == 'i1' else f' : {element}'}\n"
            f"{space}  scf.yield %{tag}_z : {element}\n"
            f"{space}}}\n"
        )

    body = _ELEMENT_LOAD.sub(guard, module.text[line_start:end])
    module.text = module.text[:line_start] + body + module.text[end:]


def _guarded_copy(
    module: _Text, copy: re.Match[str], offsets: Sequence[str], mask: str, mask_type: str
) -> list[str]:
    """Lines that copy the lanes of ``copy`` that the mask allows."""
    indent, source, target, shape, element, rest, target_type = copy.groups()
    extents = _dimensions(shape)
    tag = f"guard{next(module.numbers)}"
    line = definition(module.text, mask, copy.start())
    broadcast = line and _BROADCAST.match(line)
    if broadcast:
        along = {int(d) for d in broadcast[3].split(",")}
        kept = [d for d in range(len(extents)) if d not in along]
        if all(extents[d] == 1 for d in kept) and all(offsets[d][0] == "%" for d in kept):
            index = ", ".join(offsets[d] for d in kept)
            return [
                f"{indent}%{tag}_m = tensor.extract {broadcast[1]}[{index}] : {broadcast[2]}",
                f"{indent}scf.if %{tag}_m {{",
                copy[0].rstrip("\n"),
                f"{indent}}}",
            ]
    lane = ", ".join(f"%{tag}_i{d}" for d in range(len(extents)))
    positions, body = [], []
    for d, offset in enumerate(offsets):
        if offset == "0":
            positions.append(f"%{tag}_i{d}")
            continue
        positions.append(f"%{tag}_p{d}")
        if offset[0] != "%":
            body.append(f"%{tag}_o{d} = arith.constant {offset} : index")
            offset = f"%{tag}_o{d}"
        body.append(f"%{tag}_p{d} = arith.addi {offset}, %{tag}_i{d} : index")
    source_type = f"memref<{shape}{element}{rest}>"
    body += [
        f"%{tag}_m = tensor.extract {mask}[{', '.join(positions)}] : {mask_type}",
        f"scf.if %{tag}_m {{",
        f"%{tag}_v = memref.load {source}[{lane}] : {source_type}",
        f"memref.store %{tag}_v, {target}[{lane}] : {target_type}",
        "}",
    ]
    return list(_nest(indent, tag, extents, body))


def _guard_copies(
    module: _Text, buffer: str, start: int, end: int, mask: str, mask_type: str, mask_at: int
) -> None:
    """Put the mask around the copies that fill ``buffer`` between two positions."""
    rank = mask_type.count("x")
    for copy in reversed(list(_COPY.finditer(module.text, start, end))):
        if mask_at > copy.start():
            continue
        offsets = ["0"] * rank
        if copy[3] != buffer:
            line = definition(module.text, copy[3], copy.start())
            subview = line and _SUBVIEW.match(line)
            if not subview or subview[1] != buffer:
                continue
            offsets = [offset.strip() for offset in subview[2].split(",")]
        if len(_dimensions(copy[4])) != rank or len(offsets) != rank:
            continue
        lines = _guarded_copy(module, copy, offsets, mask, mask_type)
        module.replace(copy.start(), copy.end(), lines)


def _guard_loads(module: _Text) -> None:
    # From the last to the first: a guard lengthens the text above its select, not their number.
    for number in reversed(range(len(_SELECT.findall(module.text)))):
        select = next(itertools.islice(_SELECT.finditer(module.text), number, None))
        mask, value, _, mask_type, _ = select.groups()
        mask_at = module.define_at(mask, select.start())
        at = module.define_at(value, select.start())
        if at < 0 or module.uses(value, at) != 1:
            continue
        line = definition(module.text, value, select.start()) or ""
        to_tensor = _TO_TENSOR.match(line)
        if to_tensor:
            filled_from = module.define_at(to_tensor[1], at)
            _guard_copies(module, to_tensor[1], filled_from, at, mask, mask_type, mask_at)
        elif " = scf.for " in line and mask_at < at:
            _guard_element_loads(module, at, mask, mask_type)


def _guard_stores(module: _Text) -> None:
    for number in reversed(range(len(_STORE_BACK.findall(module.text)))):
        store = next(itertools.islice(_STORE_BACK.finditer(module.text), number, None))
        indent, value, target, _, shape, _, target_type = store.groups()
        at = module.define_at(value, store.start())
        if at < 0 or module.uses(value, at) != 1:
            continue
        line_start = module.text.rfind("\n", 0, at) + 1
        select = _SELECT.match(module.text, line_start)
        if not select:
            continue
        mask, new, old, mask_type, tensor = select.groups()
        old_at = module.define_at(old, at)
        to_tensor = _TO_TENSOR.match(definition(module.text, old, at) or "")
        if not to_tensor or module.uses(old, old_at) != 1:
            continue
        copy = _COPY.search(module.text, module.define_at(to_tensor[1], old_at), old_at)
        if not copy or copy[2] != target or copy[3] != to_tensor[1]:
            continue
        extents = _dimensions(shape)
        tag = f"guard{next(module.numbers)}"
        lane = ", ".join(f"%{tag}_i{d}" for d in range(len(extents)))
        body = [
            f"%{tag}_m = tensor.extract {mask}[{lane}] : {mask_type}",
            f"scf.if %{tag}_m {{",
            f"%{tag}_v = tensor.extract {new}[{lane}] : {tensor}",
            f"memref.store %{tag}_v, {target}[{lane}] : {target_type}",
            "}",
        ]
        module.replace(store.start(), store.end(), list(_nest(indent, tag, extents, body)))
        module.replace(select.start(), select.end() + 1, ())
        module.replace(copy.start(), copy.end(), ())


def guard_masked_accesses(text: str) -> str:
    """Rewrite the masked accesses of a Linalg module.

    Args:
        text: Linalg module with tensors.
    """
    module = _Text(text)
    _guard_loads(module)
    _guard_stores(module)
    return module.text
