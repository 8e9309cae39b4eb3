"""Bodies for the library functions that the Ascend runtime brings and a CPU does not."""

from __future__ import annotations

import itertools
import re

_CALL = re.compile(
    r"^( *)(%\w+) = (?:func\.)?call @triton_(cumsum|cumprod|flip|gather)\w*\((.*?)\)"
    r" : \((.*)\) -> (tensor<[^>]*>) *$",
    re.M,
)
_DECLARATION = re.compile(r"^ *func\.func private @triton_\w+\(.*$\n?", re.M)
_ANY_CALL = re.compile(r"call @triton_(\w+?)(?:_\d+)?\(")
_LANGUAGE = {"print": "tl.device_print", "assert": "tl.device_assert"}


def _constant(text: str, name: str, use: int) -> int:
    start = text.rfind(f" {name} = arith.constant ", 0, use)
    literal = text[start:].split("arith.constant ", 1)[1].split()[0]
    return int(literal == "true") if literal in ("true", "false") else int(literal)


def _shape_and_element(tensor: str) -> tuple[list[int], str]:
    *dims, element = tensor.removeprefix("tensor<").removesuffix(">").split("x")
    return [int(dim) for dim in dims], element


class _Loops:
    """Builds ``scf.for`` nests over tensors, one function body at a time."""

    def __init__(self, shape: list[int], tensor: str) -> None:
        self.shape, self.tensor = shape, tensor
        self.lines = [
            "%c0 = arith.constant 0 : index",
            "%c1 = arith.constant 1 : index",
            *(f"%n{d} = arith.constant {n} : index" for d, n in enumerate(shape)),
        ]

    def run(self, start: str, first: int | None, body: list[str]) -> None:
        """Loop over all dimensions; dimension ``first`` starts at 1. ``%cur`` is the tensor."""
        current = start
        for d in range(len(self.shape)):
            low = "%c1" if d == first else "%c0"
            self.lines.append(
                f"%r{d} = scf.for %i{d} = {low} to %n{d} step %c1"
                f" iter_args(%y{d} = {current}) -> ({self.tensor}) {{"
            )
            current = f"%y{d}"
        self.lines += [line.replace("%cur", current) for line in body]
        self.lines += [f"scf.yield %z : {self.tensor}", "}"]
        for d in reversed(range(1, len(self.shape))):
            self.lines += [f"scf.yield %r{d} : {self.tensor}", "}"]
        self.lines.append(f"return %r0 : {self.tensor}")

    def at(self, axis: int, index: str) -> str:
        """Subscript whose entry at ``axis`` is replaced."""
        return ", ".join(index if d == axis else f"%i{d}" for d in range(len(self.shape)))


def _scan(name: str, kind: str, tensor: str, axis: int, reverse: bool) -> str:
    shape, element = _shape_and_element(tensor)
    flavour = "f" if element[0] in "fb" else "i"
    operation = {"cumsum": "arith.add", "cumprod": "arith.mul"}[kind] + flavour
    loops = _Loops(shape, tensor)
    loops.lines.append(f"%last = arith.constant {shape[axis] - 1} : index")
    if reverse:
        here = "%p"
        body = [
            f"%p = arith.subi %last, %i{axis} : index",
            "%q = arith.addi %p, %c1 : index",
        ]
    else:
        here = f"%i{axis}"
        body = [f"%q = arith.subi %i{axis}, %c1 : index"]
    body += [
        f"%u = tensor.extract %cur[{loops.at(axis, '%q')}] : {tensor}",
        f"%v = tensor.extract %cur[{loops.at(axis, here)}] : {tensor}",
        f"%w = {operation} %u, %v : {element}",
        f"%z = tensor.insert %w into %cur[{loops.at(axis, here)}] : {tensor}",
    ]
    loops.run("%x", axis, body)
    return _function(name, f"%x: {tensor}", tensor, loops)


def _flip(name: str, tensor: str, axis: int) -> str:
    shape, _ = _shape_and_element(tensor)
    loops = _Loops(shape, tensor)
    loops.lines += [
        f"%last = arith.constant {shape[axis] - 1} : index",
        f"%e = tensor.empty() : {tensor}",
    ]
    body = [
        f"%p = arith.subi %last, %i{axis} : index",
        f"%w = tensor.extract %x[{loops.at(axis, '%p')}] : {tensor}",
        f"%z = tensor.insert %w into %cur[{loops.at(axis, f'%i{axis}')}] : {tensor}",
    ]
    loops.run("%e", None, body)
    return _function(name, f"%x: {tensor}", tensor, loops)


def _gather(name: str, source: str, index: str, result: str, axis: int) -> str:
    shape, _ = _shape_and_element(result)
    extent = _shape_and_element(source)[0][axis]
    integer = _shape_and_element(index)[1]
    loops = _Loops(shape, result)
    loops.lines += [
        f"%e = tensor.empty() : {result}",
        f"%last = arith.constant {extent - 1} : index",
    ]
    here = loops.at(axis, f"%i{axis}")
    body = [
        f"%j = tensor.extract %s[{here}] : {index}",
        f"%k = arith.index_cast %j : {integer} to index",
        # An index out of range would read past the tensor.
        "%l = arith.maxsi %k, %c0 : index",
        "%m = arith.minsi %l, %last : index",
        f"%w = tensor.extract %x[{loops.at(axis, '%m')}] : {source}",
        f"%z = tensor.insert %w into %cur[{here}] : {result}",
    ]
    loops.run("%e", None, body)
    return _function(name, f"%x: {source}, %s: {index}", result, loops)


def _function(name: str, parameters: str, result: str, loops: _Loops) -> str:
    return "\n".join((f"func.func private @{name}({parameters}) -> {result} {{", *loops.lines, "}"))


def add_library_bodies(text: str) -> tuple[str, bool]:
    """Replace library calls by calls of generated functions.

    Args:
        text: Linalg module.

    Returns:
        The module, and whether it now holds functions to inline.

    Raises:
        NotImplementedError: A call has no CPU body; the message names it.
    """
    count = itertools.count()
    bodies: list[str] = []

    def give_body(match: re.Match[str]) -> str:
        indent, result_name, kind, result = match[1], match[2], match[3], match[6]
        arguments = [argument.strip() for argument in match[4].split(",")]
        types = re.findall(r"tensor<[^>]*>|\w+", match[5])
        name = f"fa_{kind}_{next(count)}"
        operands = 2 if kind == "gather" else 1
        axis = _constant(text, arguments[operands], match.start())
        if kind == "gather":
            bodies.append(_gather(name, types[0], types[1], result, axis))
        elif kind == "flip":
            bodies.append(_flip(name, result, axis))
        else:
            reverse = bool(_constant(text, arguments[2], match.start()))
            bodies.append(_scan(name, kind, result, axis, reverse))
        passed, passed_types = ", ".join(arguments[:operands]), ", ".join(types[:operands])
        return f"{indent}{result_name} = func.call @{name}({passed}) : ({passed_types}) -> {result}"

    text = _CALL.sub(give_body, text)
    left = sorted(set(_ANY_CALL.findall(text)))
    if left:
        names = ", ".join(f"`{_LANGUAGE.get(name, f'tl.{name}')}`" for name in left)
        raise NotImplementedError(f"{names} has no native CPU implementation")
    if not bodies:
        return text, False
    text = _DECLARATION.sub("", text)
    end = text.rindex("}")
    return text[:end] + "\n".join(bodies) + "\n}\n", True
