"""Where a micro-kernel replaces the exponentials of a softmax: a mark, then a call.

The mark is a generic operation with two results that means the same as what it replaces, so it may
stay where no call can take its place.
"""

from __future__ import annotations

import itertools
import re

from fa_triton.native import micro_exp_sum
from fa_triton.native.linalg_edits import definition
from fa_triton.native.micro_calls import ANY_1D, ANY_2D, UNIT_STRIDE, Calls
from fa_triton.native.micro_exp_sum import ExpSum
from fa_triton.native.object_code import HostCpu

_EXP = re.compile(
    r"^(?P<indent> *)(?P<result>%\w+) = math\.exp (?P<x>%[\w#]+)"
    r" : (?P<type>tensor<(?P<m>\d+)x(?P<n>\d+)xf32>)\n",
    re.M,
)
_DIFFERENCE = re.compile(r" \S+ = arith\.subf (%[\w#]+), (%[\w#]+) : ")
_BROADCAST_ROWS = re.compile(
    r" \S+ = linalg\.broadcast ins\((%[\w#]+) : (tensor<\d+xf32>)\) .* dimensions = \[1\]"
)
_SUM = (
    r"^ *(?P<sum>%\w+) = linalg\.reduce ins\({name} : [^)]*\)"
    r" outs\((?P<start>%[\w#]+) : tensor<\d+xf32>\) dimensions = \[1\] *\n"
    r" *\(%\w+: f32, %\w+: f32\) \{{\n *%\w+ = arith\.addf [^\n]*\n"
    r" *linalg\.yield [^\n]*\n *\}}\n"
)
_ROUND = r"^ *(?P<rounded>%\w+) = arith\.truncf {name} : [^\n]* to tensor<\d+x\d+x(bf16|f16)>\n"
_CALL = re.compile(
    r"^(?P<indent> *)linalg\.generic \{[^\n]*\} ins\((?P<s>%[\w#]+), (?P<m>%[\w#]+)"
    r" : (?P<s_type>memref<.*?>), (?P<m_type>memref<.*?>)\) outs\((?P<p>%[\w#]+),"
    r" (?P<l>%[\w#]+) : (?P<p_type>memref<.*?>), (?P<l_type>memref<.*?>)\)"
    r" attrs = +\{fa_kernel = \"(?P<kernel>fa_exp_sum_\w+)\"\} \{\n(?:.*\n)*?"
    r" *linalg\.yield .*\n *\}$",
    re.M,
)
_MAPS = (
    "affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>,"
    " affine_map<(d0, d1) -> (d0, d1)>, affine_map<(d0, d1) -> (d0)>"
)


def mark_exponentials(text: str, cpu: HostCpu) -> str:
    """Join ``exp(S - m)``, its row sums and its rounding.

    Args:
        text: Linalg module, as it comes from the front end.
        cpu: The CPU code is generated for.
    """
    if not cpu.lanes:
        return text
    position = 0
    for number in itertools.count():
        match = _EXP.search(text, position)
        if match is None:
            return text
        position = match.end()
        joined = _join(text, match, number, cpu.lanes)
        if joined:
            text = joined
    return text


def _join(text: str, match: re.Match[str], number: int, lanes: int) -> str | None:
    m, n = int(match["m"]), int(match["n"])
    difference = _DIFFERENCE.match(definition(text, match["x"], match.start()) or "")
    if difference is None or not micro_exp_sum.fits(n, lanes):
        return None
    broadcast = _BROADCAST_ROWS.match(definition(text, difference[2], match.start()) or "")
    if broadcast is None:
        return None
    indent, name = match["indent"], match["result"]
    end = re.compile(rf"^ {{0,{len(indent) - 1}}}\S", re.M).search(text, match.end())
    region = text[match.end() : end.start() if end else len(text)]
    total = re.search(_SUM.format(name=name), region, re.M)
    rounded = re.search(_ROUND.format(name=name), region, re.M)
    uses = len(re.findall(rf"{name}\b", region))
    if total is None or (rounded and uses != 2):
        return None
    element = rounded[2] if rounded else "f32"
    result, kind = rounded["rounded"] if rounded else name, f"tensor<{m}x{n}x{element}>"
    for gone in filter(None, (total, rounded)):
        region = region.replace(gone[0], "", 1)
    # The sums may be used above the rounding and the reverse: both results are defined here.
    both, target = f"%fa_exp{number}", f"%fa_exp_to{number}"
    narrow = f"%r = arith.truncf %e : f32 to {element}\n" if rounded else ""
    kernel = ExpSum(m, n, element).name
    marked = (
        f"{indent}{target} = tensor.empty() : {kind}\n"
        f"{indent}{both}:2 = linalg.generic {{indexing_maps = [{_MAPS}],"
        f' iterator_types = ["parallel", "reduction"]}}'
        f" ins({difference[1]}, {broadcast[1]} : {match['type']}, {broadcast[2]})"
        f" outs({target}, {total['start']} : {kind}, tensor<{m}xf32>)"
        f' attrs = {{fa_kernel = "{kernel}"}} {{\n'
        f"^bb0(%s: f32, %m: f32, %p: {element}, %l: f32):\n"
        f"%x = arith.subf %s, %m : f32\n%e = math.exp %x : f32\n"
        f"%t = arith.addf %e, %l : f32\n{narrow}"
        f"linalg.yield {'%r' if rounded else '%e'}, %t : {element}, f32\n"
        f"}} -> ({kind}, tensor<{m}xf32>)\n"
    )
    for old, new in ((total["sum"], f"{both}#1"), (result, f"{both}#0")):
        region = re.sub(rf"{old}\b", new, region)
    return text[: match.start()] + marked + region + text[end.start() if end else len(text) :]


def call_exponentials(text: str, calls: Calls) -> str:
    """Replace the marks of a bufferized module by calls."""

    def call(match: re.Match[str]) -> str:
        kinds = match.group("s_type", "m_type", "p_type", "l_type")
        if not all(map(UNIT_STRIDE.fullmatch, kinds)):
            return match[0]
        element = ExpSum.parse(match["kernel"]).element
        types = (ANY_2D.format("f32"), ANY_1D, ANY_2D.format(element), ANY_1D)
        values = match.group("s", "m", "p", "l")
        return calls.call(match["indent"], match["kernel"], values, kinds, types)

    return _CALL.sub(call, text)
