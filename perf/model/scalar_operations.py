"""Integer and scalar float arithmetic: ``arith``, ``affine``, ``math``, scalars of ``llvm``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any

from perf.model.core import Builder, Core, Handler, UnknownOperationError
from perf.model.mlir import Module, Operation

VALUE = re.compile(r"%[\w#-]+")
_CONSTANT = re.compile(r"constant\s*\(?\s*(-?[\w.+-]+)")
_PREDICATE = re.compile(r'(?:cmpi|icmp|cmpf|fcmp) (?:fast )?"?(\w+)"?')
_MAP = re.compile(r"(#map\d*)")
# an affine expression takes a few instructions
_AFFINE_OPERATIONS = 3


def _divide(a: Any, b: Any) -> Any:
    """Division towards zero; the value of a division by zero is never used."""
    return int(a / b) if b else 0


def _remainder(a: Any, b: Any) -> Any:
    return int(math.fmod(a, b)) if b else 0


def _floor_divide(a: Any, b: Any) -> Any:
    return a // b if b else 0


def _ceil_divide(a: Any, b: Any) -> Any:
    return -(-a // b) if b else 0


def _divide_floats(a: Any, b: Any) -> Any:
    return a / b if b else 0.0


_BINARY: dict[str, Callable[[Any, Any], Any]] = {
    **dict.fromkeys(("addi", "addf", "add", "fadd"), lambda a, b: a + b),
    **dict.fromkeys(("subi", "subf", "sub", "fsub"), lambda a, b: a - b),
    **dict.fromkeys(("muli", "mulf", "mul", "fmul"), lambda a, b: a * b),
    **dict.fromkeys(("divsi", "sdiv"), _divide),
    **dict.fromkeys(("remsi", "srem"), _remainder),
    **dict.fromkeys(("divui", "udiv", "floordivsi"), _floor_divide),
    **dict.fromkeys(("remui", "urem"), lambda a, b: a % b if b else 0),
    **dict.fromkeys(("ceildivsi", "ceildivui"), _ceil_divide),
    **dict.fromkeys(("divf", "fdiv"), _divide_floats),
    **dict.fromkeys(("minsi", "minui", "intr.smin", "intr.umin", "minimumf", "minnumf"), min),
    **dict.fromkeys(("maxsi", "maxui", "intr.smax", "intr.umax", "maximumf", "maxnumf"), max),
    **dict.fromkeys(("intr.minimum", "intr.minnum"), min),
    **dict.fromkeys(("intr.maximum", "intr.maxnum"), max),
    **dict.fromkeys(("andi", "and"), lambda a, b: int(a) & int(b)),
    **dict.fromkeys(("ori", "or"), lambda a, b: int(a) | int(b)),
    **dict.fromkeys(("xori", "xor"), lambda a, b: int(a) ^ int(b)),
    **dict.fromkeys(("shli", "shl"), lambda a, b: a << b),
    **dict.fromkeys(("shrsi", "shrui", "ashr", "lshr"), lambda a, b: a >> b),
}
_CASTS = [
    "index_cast",
    "index_castui",
    "trunci",
    "extsi",
    "extui",
    "trunc",
    "sext",
    "zext",
    "sitofp",
    "fptosi",
    "uitofp",
    "fptoui",
    "truncf",
    "extf",
    "fptrunc",
    "fpext",
    "bitcast",
]
_COMPARE: dict[str, Callable[[Any, Any], bool]] = {
    **dict.fromkeys(("eq", "oeq", "ueq"), lambda a, b: a == b),
    **dict.fromkeys(("ne", "one", "une"), lambda a, b: a != b),
    **dict.fromkeys(("slt", "ult", "olt"), lambda a, b: a < b),
    **dict.fromkeys(("sle", "ule", "ole"), lambda a, b: a <= b),
    **dict.fromkeys(("sgt", "ugt", "ogt"), lambda a, b: a > b),
    **dict.fromkeys(("sge", "uge", "oge"), lambda a, b: a >= b),
}
_UNARY: dict[str, Callable[[Any], Any]] = {
    "negf": lambda a: -a,
    "fneg": lambda a: -a,
    "intr.abs": abs,
    "intr.fabs": abs,
    "absf": abs,
    "sqrt": lambda a: math.sqrt(max(a, 0.0)),
}


def operands(operation: Operation) -> list[str]:
    """Names of the values an operation takes, in order."""
    return VALUE.findall(operation.text)


def _constant(operation: Operation, module: Module) -> Handler:
    found = _CONSTANT.search(operation.text)
    result, value = operation.results[0], _number(found[1] if found else "")

    def handle(core: Core) -> None:
        core.values[result] = value

    return handle


def _number(text: str) -> int | float:
    if text in ("true", "false"):
        return int(text == "true")
    for read in (lambda: int(text, 0), lambda: float(text)):
        try:
            return read()
        except ValueError:
            continue
    # a dense vector: no scalar depends on it
    return 0


def _arithmetic(operation: Operation, module: Module) -> Handler:
    name = operation.name.partition(".")[2]
    taken, text = operands(operation), operation.text
    if name == "select":
        condition, left, right = taken[:3]
        return _store(operation, lambda v: v[left] if v[condition] else v[right])
    if name in ("cmpi", "icmp", "cmpf", "fcmp"):
        predicate = _PREDICATE.search(text)
        if predicate is None or predicate[1] not in _COMPARE:
            raise UnknownOperationError(f"no rule for comparison {text[:60]!r}")
        a, b, compare = taken[0], taken[1], _COMPARE[predicate[1]]
        return _store(operation, lambda v: int(compare(v[a], v[b])))
    if name in _CASTS:
        a = taken[0]
        if text.endswith(" to i1"):
            return _store(operation, lambda v: int(v[a]) & 1, cost=0)
        return _store(operation, lambda v: v[a], cost=0)
    if name in _UNARY:
        a, change = taken[0], _UNARY[name]
        return _store(operation, lambda v: change(v[a]))
    if name in _BINARY:
        a, b, apply = taken[0], taken[1], _BINARY[name]
        return _store(operation, lambda v: apply(v[a], v[b]))
    raise UnknownOperationError(f"no rule for operation {operation.name!r}")


def _affine(operation: Operation, module: Module) -> Handler:
    named = _MAP.search(operation.text)
    if named is None:
        raise UnknownOperationError(f"no rule for {operation.text[:60]!r}")
    apply, taken = module.maps[named[1]], operands(operation)
    fold = {"affine.apply": lambda results: results[0], "affine.min": min, "affine.max": max}[
        operation.name
    ]
    return _store(operation, lambda v: fold(apply([v[a] for a in taken])), _AFFINE_OPERATIONS)


def _store(
    operation: Operation, compute: Callable[[dict[str, Any]], Any], cost: int = 1
) -> Handler:
    result = operation.results[0]

    def handle(core: Core) -> None:
        core.values[result] = compute(core.values)
        core.count(cost)

    return handle


BUILDERS: dict[str, Builder] = {
    "arith.constant": _constant,
    "llvm.mlir.constant": _constant,
    "arith.*": _arithmetic,
    "llvm.*": _arithmetic,
    "math.*": _arithmetic,
    "affine.apply": _affine,
    "affine.min": _affine,
    "affine.max": _affine,
}
