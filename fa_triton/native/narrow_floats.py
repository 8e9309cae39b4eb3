"""16-bit floats in LLVM IR, spelled so that loops over them vectorise."""

from __future__ import annotations

import re
from collections import Counter

_FUNCTION = re.compile(r"^define .*?^}$", re.M | re.S)
_NAME = re.compile(r"%[\w.]+")
# a load whose value is stored in the same basic block
_COPY = re.compile(
    r"(?P<value>%\w+) = load (?P<type>bfloat|half)(?P<between>, ptr [^\n]*\n(?:  [^\n]*\n){0,6}?)"
    r"  store (?P=type) (?P=value),"
)
# MLIR's rounding to bf16: to nearest, ties to even, on the bits; a NaN gives the one NaN
_ROUNDED = re.compile(
    r"(?P<start>(?P<is_nan>%\w+) = fcmp une float (?P<value>%\w+), (?P=value)\n)"
    r"  (?P<bits>%(?P<number>\w+)) = bitcast float (?P=value) to i32\n"
    r"(?P<rounding>(?:  %\w+ = (?:lshr|and|add) i32 [^\n]*\n){5})"
    r"(?P<end>  (?P<low>%\w+) = trunc i32 %\w+ to i16\n)"
    r"  (?P<result>%\w+) = select i1 (?P=is_nan), i16 32704, i16 (?P=low)\n"
)
_NAN_BITS = 0x7FC00000
# What x86 calls where it has no instruction that rounds to bf16, with the bits of the rest: a
# function of the compiler's runtime library, which a process need not have.
_RUNTIME_ROUNDING = """
define bfloat @__truncsfbf2(float %x) {
  %bits = bitcast float %x to i32
  %is_nan = fcmp uno float %x, %x
  %high = lshr i32 %bits, 16
  %odd = and i32 %high, 1
  %bias = add i32 %odd, 32767
  %sum = add i32 %bits, %bias
  %rounded = lshr i32 %sum, 16
  %word = select i1 %is_nan, i32 32704, i32 %rounded
  %half = trunc i32 %word to i16
  %result = bitcast i16 %half to bfloat
  ret bfloat %result
}
"""


def vectorisable(text: str) -> str:
    """Copy 16-bit floats as integers, and replace a NaN before it is rounded to bf16, not after.

    LLVM takes vectors of bf16 for expensive and leaves copies in scalar loops; a choice between
    16-bit integers by a comparison of floats is taken apart into scalars on CPUs without AVX-512.
    """
    text = _FUNCTION.sub(lambda match: _copy_integers(match[0]), text)
    return _ROUNDED.sub(
        r"\g<start>"
        r"  %own\g<number> = bitcast float \g<value> to i32\n"
        rf"  \g<bits> = select i1 \g<is_nan>, i32 {_NAN_BITS}, i32 %own\g<number>\n"
        r"\g<rounding>\g<end>"
        r"  \g<result> = or i16 \g<low>, 0\n",
        text,
    )


def with_rounding(text: str) -> str:
    """Define the function that bf16 arithmetic may call to round its results."""
    return text + _RUNTIME_ROUNDING if "bfloat" in text else text


def _copy_integers(function: str) -> str:
    uses = Counter(_NAME.findall(function))

    def copy(match: re.Match[str]) -> str:
        value = match["value"]
        if uses[value] != 2:
            return match[0]
        return f"{value} = load i16{match['between']}  store i16 {value},"

    return _COPY.sub(copy, function)
