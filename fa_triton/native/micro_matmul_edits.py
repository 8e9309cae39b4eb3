"""Where micro-kernels replace matmuls: marks in the Linalg text, then calls."""

from __future__ import annotations

import itertools
import re
from dataclasses import replace

from fa_triton.native import micro_amx, micro_fma, micro_rows
from fa_triton.native.linalg_edits import definition
from fa_triton.native.micro_calls import ANY_1D, ANY_2D, UNIT_STRIDE, Calls
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.object_code import HostCpu

_TENSOR_MATMUL = re.compile(
    r"^(?P<indent> *)(?P<result>%\w+) = linalg\.matmul \{(?P<attributes>[^}]*)\}"
    r" ins\((?P<a>%[\w#]+), (?P<b>%[\w#]+) : tensor<(?P<m>\d+)x(?P<k>\d+)x(?P<left>\w+)>,"
    r" tensor<\d+x(?P<n>\d+)x(?P<right>\w+)>\)"
    r" outs\((?P<c>%[\w#]+) : (?P<type>tensor<\d+x\d+xf32>)\)",
    re.M,
)
_TRANSPOSE = re.compile(
    r" %\w+ = linalg\.transpose ins\((%[\w#]+) : (tensor<\d+x\d+x\w+>)\)"
    r" .*permutation = \[1, 0\]"
)
_NARROWED = re.compile(r" \S+ = arith\.truncf (%[\w#]+) : tensor<\d+x\d+xf32>")
_INTEGERS = re.compile(r" \S+ = arith\.sitofp (%[\w#]+) : (tensor<\d+x\d+xi8>) to ")
_FILL = re.compile(r" \S+ = linalg\.fill ins\((%[\w#]+) : f32\)")
_PRODUCT = re.compile(r" \S+ = arith\.mulf (%[\w#]+), (%[\w#]+) : tensor<\d+x\d+xf32>$")
_BROADCAST_ROWS = re.compile(
    r" \S+ = linalg\.broadcast ins\((%[\w#]+) : (tensor<\d+xf32>)\) .* dimensions = \[1\]"
)
_ZERO = re.compile(r" \S+ = arith\.constant 0\.000000e\+00 : f32")
_ROW_SCALE = re.compile(
    r"^ *linalg\.generic \{[^\n]*\} ins\((?P<scale>%[\w#]+) : (?P<type>memref<\d+xf32>)\)"
    r" outs\((?P<c>%[\w#]+) : memref<\d+x\d+xf32>\) attrs = +\{fa_row_scale\} \{\n"
    r" *\^bb0[^\n]*\n *%\w+ = arith\.mulf [^\n]*\n *linalg\.yield [^\n]*\n *\}\n",
    re.M,
)
_MEMREF_MATMUL = re.compile(
    r"^(?P<indent> *)linalg\.matmul\w* \{fa_kernel = \"(?P<kernel>\w+)\"[^}]*\}"
    r"(?: \{(?P<scale>%[\w#]+) : (?P<scale_type>memref<.*?>)\})?"
    r" ins\((?P<a>%[\w#]+), (?P<b>%[\w#]+) : (?P<types>memref<.*?>), (?P<right>memref<.*?>)\)"
    r" outs\((?P<c>%[\w#]+) : (?P<out>memref<.*>)\) *$",
    re.M,
)


def _unit(cpu: HostCpu, m: int, n: int, k: int, element: str) -> str | None:
    if not cpu.lanes:
        return None
    if micro_rows.fits(m, n, k, cpu.lanes):
        return "rows"
    if cpu.has_amx and element != "f32" and micro_amx.fits(m, n, k):
        return "amx"
    return "fma" if micro_fma.fits(m, n, k, cpu.lanes) else None


def _row_scale(text: str, c: str, use: int) -> tuple[str, str, str] | None:
    """Matrix, factors and their type where ``c`` is a matrix with scaled rows."""
    product = _PRODUCT.match(definition(text, c, use) or "")
    if product is None:
        return None
    for matrix, factors in (product.group(1, 2), product.group(2, 1)):
        broadcast = _BROADCAST_ROWS.match(definition(text, factors, use) or "")
        if broadcast:
            return matrix, broadcast[1], broadcast[2]
    return None


def _integers(text: str, b: str, use: int) -> tuple[str, str] | None:
    """Tensor of i8 and its type where ``b`` holds the same numbers: every type of A has them."""
    narrowed = _NARROWED.match(definition(text, b, use) or "")
    whole = _INTEGERS.match(definition(text, narrowed[1] if narrowed else b, use) or "")
    return (whole[1], whole[2]) if whole else None


def mark_matmuls(text: str, cpu: HostCpu) -> str:
    """Name a micro-kernel at each matmul that has one.

    B's conversion from integers, its transpose and C's zeros are folded into it.

    Args:
        text: Linalg module, as it comes from the front end.
        cpu: The CPU code is generated for.
    """
    numbers = itertools.count()

    def mark(match: re.Match[str]) -> str:
        m, n, k = (int(match[x]) for x in "mnk")
        element = match["left"]
        unit = _unit(cpu, m, n, k, element)
        if unit is None or element != match["right"] or element not in ("bf16", "f16", "f32"):
            return match[0]
        indent, b, c = match["indent"], match["b"], match["c"]
        b_type = f"tensor<{k}x{n}x{element}>"
        line = definition(text, b, match.start())
        transpose = line and _TRANSPOSE.match(line)
        if transpose:
            b, b_type = transpose[1], transpose[2]
        stored = _integers(text, b, match.start()) if unit == "rows" else None
        if stored:
            b, b_type = stored
        fill = _FILL.match(definition(text, c, match.start()) or "")
        fresh = bool(fill and _ZERO.match(definition(text, fill[1], match.start()) or ""))
        start = ""
        if fresh:
            c = f"%fa_new{next(numbers)}"
            start = f"{indent}{c} = tensor.empty() : {match['type']}\n"
        elif scale := _row_scale(text, c, match.start()):
            before, factors, kind = scale
            c = f"%fa_scaled{next(numbers)}"
            start = (
                f"{indent}{c} = linalg.generic {{indexing_maps = [affine_map<(d0, d1) -> (d0)>,"
                f' affine_map<(d0, d1) -> (d0, d1)>], iterator_types = ["parallel",'
                f' "parallel"]}} ins({factors} : {kind}) outs({before} : {match["type"]})'
                f" attrs = {{fa_row_scale}} {{\n^bb0(%in: f32, %out: f32):\n"
                f"%y = arith.mulf %out, %in : f32\nlinalg.yield %y : f32\n}} -> {match['type']}\n"
            )
        spec = Matmul(unit, m, n, k, element, bool(transpose), fresh, integers=bool(stored))
        operation = "matmul_transpose_b" if transpose else "matmul"
        attributes = ", ".join(filter(None, (f'fa_kernel = "{spec.name}"', match["attributes"])))
        return (
            f"{start}{indent}{match['result']} = linalg.{operation} {{{attributes}}}"
            f" ins({match['a']}, {b} : tensor<{m}x{k}x{element}>, {b_type})"
            f" outs({c} : {match['type']})"
        )

    return _TENSOR_MATMUL.sub(mark, text)


def _fold_row_scales(text: str) -> str:
    """Let a matmul scale the rows it adds to, where that is the line before."""
    position = 0
    while scale := _ROW_SCALE.search(text, position):
        position = scale.end()
        matmul = _MEMREF_MATMUL.match(text, position)
        if matmul is None or matmul["c"] != scale["c"]:
            continue
        kinds = (scale["type"], *matmul.group("types", "right", "out"))
        if not all(map(UNIT_STRIDE.fullmatch, kinds)):
            continue
        name = matmul["kernel"]
        line = matmul[0].replace(name, replace(Matmul.parse(name), scaled=True).name, 1)
        line = line.replace("ins(", f"{{{scale['scale']} : {scale['type']}}} ins(", 1)
        text = text[: scale.start()] + line + text[matmul.end() :]
    return text


def _operand_types(spec: Matmul) -> list[str]:
    matrices = [ANY_2D.format(element) for element in (spec.element, spec.right, "f32")]
    return matrices + [ANY_1D] * spec.scaled


def call_matmuls(text: str, calls: Calls) -> str:
    """Replace marked matmuls of a bufferized module; a strided inner axis keeps its loop."""

    def call(match: re.Match[str]) -> str:
        kinds = [match["types"], match["right"], match["out"]]
        if not all(map(UNIT_STRIDE.fullmatch, kinds)):
            return match[0]
        values = [match["a"], match["b"], match["c"]]
        if match["scale"]:
            values.append(match["scale"])
            kinds.append(match["scale_type"])
        types = _operand_types(Matmul.parse(match["kernel"]))
        return calls.call(match["indent"], match["kernel"], values, kinds, types)

    return _MEMREF_MATMUL.sub(call, _fold_row_scales(text))
