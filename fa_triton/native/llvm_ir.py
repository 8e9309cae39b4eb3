"""LLVM dialect -> LLVM IR, its clean-up, and the driver that runs a kernel over its grid."""

from __future__ import annotations

import re
import tempfile
from dataclasses import dataclass

from fa_triton.native.errors import LoweringError
from fa_triton.native.math_functions import FUNCTIONS, INTRINSICS
from fa_triton.native.narrow_floats import vectorisable, with_rounding

DRIVER = "__fa_grid"

# Memrefs of the Ascend ABI (sync locks, workspace) precede a kernel's own arguments, the sizes
# of the grid and the program's position follow them.
_HIDDEN_BEFORE = 2
_HIDDEN_AFTER = 6

_LLVM_TYPES = {"f16": "half", "bf16": "bfloat", "f32": "float", "f64": "double"}
_UNBOUNDED = 2**62


@dataclass(frozen=True)
class KernelSignature:
    """The kernel function in the Linalg module: its name and its arguments' MLIR types."""

    name: str
    arguments: tuple[str, ...]


def kernel_signature(linalg: str) -> KernelSignature:
    """Read name and own argument types (hidden ones left out) of the kernel function."""
    match = re.search(r"func\.func @(\w+)\((.*?)\) attributes", linalg)
    if match is None:
        raise LoweringError("triton-adapter-opt", "error: the module holds no kernel", linalg)
    types = [
        parameter.split(": ", 1)[1].split("{")[0].strip()
        for parameter in re.split(r", (?=%arg)", match[2])
    ]
    return KernelSignature(match[1], tuple(types[_HIDDEN_BEFORE:-_HIDDEN_AFTER]))


def translate(llvm_dialect: str) -> str:
    """Translate a module in the LLVM dialect with the translator inside triton's library."""
    from triton._C.libtriton import ir, llvm

    with tempfile.NamedTemporaryFile("w", suffix=".mlir") as file:
        file.write(llvm_dialect)
        file.flush()
        context = ir.context()
        ir.load_dialects(context)
        try:
            module = ir.parse_mlir_module(file.name, context)
        except RuntimeError as error:
            raise LoweringError("libtriton", f"error: {error}", llvm_dialect) from None
        module.context = context
        return str(llvm.to_module(module, llvm.context()))


def relax_arithmetic(text: str) -> str:
    """Let additions vectorise and products fuse; NaN and infinities keep their meaning.

    Products get no ``reassoc``: it would merge the two exponent factors inside exp into inf.
    """
    text = re.sub(r"= fadd (float|double|<)", r"= fadd reassoc contract nsz \1", text)
    text = re.sub(r"= (fmul|fsub) (float|double|<)", r"= \1 contract \2", text)
    return re.sub(r"call float @llvm\.(maxnum|minnum)\.f32", r"call nsz float @llvm.\1.f32", text)


def inline_math(text: str) -> str:
    """Call the functions of math_functions instead of libm's."""
    # The 16-bit intrinsics would be widened by the code generator and call libm per lane.
    widened = []
    for name in FUNCTIONS:
        if f"@llvm.{name}.f16(" in text:
            text = text.replace(f"call half @llvm.{name}.f16(", f"call half @__fa_{name}_f16(")
            widened.append(
                f"\ndefine internal half @__fa_{name}_f16(half %x) alwaysinline {{\n"
                f"  %w = fpext half %x to float\n"
                f"  %y = call float @llvm.{name}.f32(float %w)\n"
                f"  %r = fptrunc float %y to half\n"
                f"  ret half %r\n}}\n"
            )
    text += "".join(widened)
    used = [name for name in FUNCTIONS if f"@llvm.{name}.f32(" in text]
    for name in used:
        text = text.replace(f"call float @llvm.{name}.f32(", f"call float @__fa_{name}(")
        text += FUNCTIONS[name]
    if used:
        for name, declaration in INTRINSICS.items():
            if f"@{name}(" not in text.split("define internal float @__fa_", 1)[0]:
                text += declaration + "\n"
    return text


_DIVISION = re.compile(r"= (sdiv|udiv|srem|urem)(?: exact)? (i\d+) (\S+), (%\S+)$", re.M)


def guard_divisions(text: str) -> str:
    """Make integer division by a variable total: a zero divisor gives 0, the quotient wraps.

    x86 traps on both; the NPU does not.
    """
    used: set[tuple[str, str]] = set()

    def guard(match: re.Match[str]) -> str:
        operation, kind = match[1], match[2]
        used.add((operation, kind))
        return f"= call {kind} @__fa_{operation}_{kind}({kind} {match[3]}, {kind} {match[4]})"

    text = _DIVISION.sub(guard, text)
    for operation, kind in sorted(used):
        signed = operation[0] == "s"
        wraps = (
            f"  %minus = icmp eq {kind} %b, -1\n"
            f"  %low = icmp eq {kind} %a, {-(2 ** (int(kind[1:]) - 1))}\n"
            f"  %wrap = and i1 %minus, %low\n"
            f"  %bad = or i1 %zero, %wrap\n"
            if signed
            else "  %bad = or i1 %zero, false\n"
        )
        # -2^n / -1 wraps to -2^n, which is the dividend; a remainder is 0 in both cases.
        on_bad = "%a" if operation == "sdiv" else "0"
        text += (
            f"\ndefine internal {kind} @__fa_{operation}_{kind}({kind} %a, {kind} %b)"
            f" alwaysinline {{\n"
            f"  %zero = icmp eq {kind} %b, 0\n{wraps}"
            f"  %safe = select i1 %bad, {kind} 1, {kind} %b\n"
            f"  %q = {operation} {kind} %a, %safe\n"
            f"  %w = select i1 %bad, {kind} {on_bad}, {kind} %q\n"
            f"  %r = select i1 %zero, {kind} 0, {kind} %w\n"
            f"  ret {kind} %r\n}}\n"
        )
    return text


def libm_names(text: str) -> str:
    """Map the names of Ascend's device library to libm's."""
    return re.sub(r"@__hmf_(\w+)", r"@\1", text)


def _driver(signature: KernelSignature) -> str:
    loads, call = [], ["ptr null, ptr null, i64 0, i64 0, i64 1"] * _HIDDEN_BEFORE
    for number, mlir_type in enumerate(signature.arguments):
        is_pointer = mlir_type.startswith("memref")
        kind = "ptr" if is_pointer else _LLVM_TYPES.get(mlir_type, mlir_type)
        loads.append(
            f"  %slot{number} = getelementptr i64, ptr %args, i64 {number}\n"
            f"  %arg{number} = load {kind}, ptr %slot{number}"
        )
        call.append(
            f"ptr %arg{number}, ptr %arg{number}, i64 0, i64 {_UNBOUNDED}, i64 1"
            if is_pointer
            else f"{kind} %arg{number}"
        )
    call.append("i32 %nx, i32 %ny, i32 %nz, i32 %x, i32 %y, i32 %z")
    loads_text = "\n".join(loads)
    return f"""
define void @{DRIVER}(ptr %args, ptr %next, i64 %chunk, i64 %total, i32 %nx, i32 %ny, i32 %nz) {{
entry:
{loads_text}
  br label %take
take:
  %lo = atomicrmw add ptr %next, i64 %chunk monotonic
  %some = icmp ult i64 %lo, %total
  br i1 %some, label %begin, label %done
begin:
  %end = add i64 %lo, %chunk
  %last = call i64 @llvm.umin.i64(i64 %end, i64 %total)
  br label %program
program:
  %p = phi i64 [ %lo, %begin ], [ %following, %program ]
  %p32 = trunc i64 %p to i32
  %x = urem i32 %p32, %nx
  %q = udiv i32 %p32, %nx
  %y = urem i32 %q, %ny
  %z = udiv i32 %q, %ny
  call void @{signature.name}({", ".join(call)})
  %following = add i64 %p, 1
  %more = icmp ult i64 %following, %last
  br i1 %more, label %program, label %take
done:
  ret void
}}
"""


def finish(text: str, signature: KernelSignature) -> str:
    """Clean up translated LLVM IR and add the grid driver.

    The driver takes programs from a shared counter, ``chunk`` at a time, until ``total`` is
    reached, so that any number of threads may run it at once. ``args`` holds one 8-byte slot per
    argument: an address, or a scalar in its low bytes.

    Args:
        text: LLVM IR as translated.
        signature: The kernel function.
    """
    text = inline_math(relax_arithmetic(vectorisable(text)))
    text = libm_names(guard_divisions(text))
    text = text.replace(
        f"define void @{signature.name}(", f"define internal void @{signature.name}(", 1
    )
    if "@llvm.umin.i64(" not in text:
        text += "declare i64 @llvm.umin.i64(i64, i64)\n"
    return with_rounding(text) + _driver(signature)
