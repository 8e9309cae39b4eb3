"""LLVM text of exp, exp2, log and log2 in f32: branch-free, so that loops around them vectorise.

Polynomials and reductions follow Cephes; NaN, infinities, overflow, denormal arguments and
results, and the sign of invalid arguments behave as in torch. Largest relative error over 2^20
points each: see tests/native/test_math.py.
"""

from __future__ import annotations

# n + r = x / ln 2; 2^n is split in two halves of the exponent, so that it may be denormal.
_EXP_TAIL = """\
  %p0 = call float @llvm.fma.f32(float %r, float 0x3F2A0D2CE0000000, float 0x3F56E879C0000000)
  %p1 = call float @llvm.fma.f32(float %p0, float %r, float 0x3F81112100000000)
  %p2 = call float @llvm.fma.f32(float %p1, float %r, float 0x3FA5553820000000)
  %p3 = call float @llvm.fma.f32(float %p2, float %r, float 0x3FC5555540000000)
  %p4 = call float @llvm.fma.f32(float %p3, float %r, float 5.000000e-01)
  %r2 = fmul float %r, %r
  %p5 = call float @llvm.fma.f32(float %p4, float %r2, float %r)
  %p6 = fadd float %p5, 1.000000e+00
  %ni = fptosi float %n to i32
"""

# %p6 * 2^%ni
_SCALE = """\
  %nh = ashr i32 %ni, 1
  %nl = sub i32 %ni, %nh
  %ah = add i32 %nh, 127
  %al = add i32 %nl, 127
  %sh = shl i32 %ah, 23
  %sl = shl i32 %al, 23
  %fh = bitcast i32 %sh to float
  %fl = bitcast i32 %sl to float
  %q = fmul float %p6, %fh
  %e = fmul float %q, %fl
"""

_EXP = f"""
define internal float @__fa_exp(float %x0) alwaysinline {{
  %lo = fcmp olt float %x0, 0xC05D9F4040000000
  %x1 = select i1 %lo, float 0xC05D9F4040000000, float %x0
  %hi = fcmp ogt float %x1, 0x4056333340000000
  %x = select i1 %hi, float 0x4056333340000000, float %x1
  %t = fmul float %x, 0x3FF7154760000000
  %n = call float @llvm.rint.f32(float %t)
  %r1 = call float @llvm.fma.f32(float %n, float 0xBFE6300000000000, float %x)
  %r = call float @llvm.fma.f32(float %n, float 0x3F2BD01060000000, float %r1)
{_EXP_TAIL}{_SCALE}\
  %z = fcmp olt float %x0, 0xC059FE3680000000
  %e1 = select i1 %z, float 0.000000e+00, float %e
  %big = fcmp ogt float %x0, 0x40562E42E0000000
  %e2 = select i1 %big, float 0x7FF0000000000000, float %e1
  %nan = fcmp uno float %x0, %x0
  %e3 = select i1 %nan, float %x0, float %e2
  ret float %e3
}}
"""

# A minimax polynomial of 2^d on [-1/2, 1/2]. A NaN passes through it, whatever its exponent.
_EXP2 = f"""
define internal float @__fa_exp2(float %x0) alwaysinline {{
  %lo = fcmp olt float %x0, 0xC062E00000000000
  %x1 = select i1 %lo, float 0xC062E00000000000, float %x0
  %hi = fcmp ogt float %x1, 0x4060200000000000
  %x = select i1 %hi, float 0x4060200000000000, float %x1
  %n = call float @llvm.rint.f32(float %x)
  %d = fsub float %x, %n
  %p1 = call float @llvm.fma.f32(float %d, float 0x3F241FBBC0000000, float 0x3F55F3E540000000)
  %p2 = call float @llvm.fma.f32(float %p1, float %d, float 0x3F83B2D4C0000000)
  %p3 = call float @llvm.fma.f32(float %p2, float %d, float 0x3FAC6AEE80000000)
  %p4 = call float @llvm.fma.f32(float %p3, float %d, float 0x3FCEBFBDC0000000)
  %p5 = call float @llvm.fma.f32(float %p4, float %d, float 0x3FE62E4300000000)
  %p6 = call float @llvm.fma.f32(float %p5, float %d, float 1.000000e+00)
  %nan = fptosi float %n to i32
  %ni = freeze i32 %nan
{_SCALE}\
  ret float %e
}}
"""

# x = 2^k * m with m in [sqrt(1/2), sqrt(2)); ln m is %fl_hi + %y2 with f = m - 1.
_LOG_HEAD = """\
  %den = fcmp olt float %x0, 0x3810000000000000
  %xs = fmul float %x0, 0x4160000000000000
  %x = select i1 %den, float %xs, float %x0
  %eb = select i1 %den, i32 -23, i32 0
  %b = bitcast float %x to i32
  %t = sub i32 %b, 1060439283
  %k0 = ashr i32 %t, 23
  %ks = shl i32 %k0, 23
  %mb = sub i32 %b, %ks
  %m = bitcast i32 %mb to float
  %k = add i32 %k0, %eb
  %e = sitofp i32 %k to float
  %f = fsub float %m, 1.000000e+00
  %z = fmul float %f, %f
  %q0 = call float @llvm.fma.f32(float %f, float 0x3FB2043760000000, float 0xBFBD7A3700000000)
  %q1 = call float @llvm.fma.f32(float %q0, float %f, float 0x3FBDE4A340000000)
  %q2 = call float @llvm.fma.f32(float %q1, float %f, float 0xBFBFCBA9E0000000)
  %q3 = call float @llvm.fma.f32(float %q2, float %f, float 0x3FC23D37E0000000)
  %q4 = call float @llvm.fma.f32(float %q3, float %f, float 0xBFC555CA00000000)
  %q5 = call float @llvm.fma.f32(float %q4, float %f, float 0x3FC999D580000000)
  %q6 = call float @llvm.fma.f32(float %q5, float %f, float 0xBFCFFFFF80000000)
  %q7 = call float @llvm.fma.f32(float %q6, float %f, float 0x3FD5555540000000)
  %fz = fmul float %f, %z
  %y0 = fmul float %fz, %q7
"""

_LOG_TAIL = """\
  %inf = fcmp oeq float %x0, 0x7FF0000000000000
  %z1 = select i1 %inf, float %x0, float %y
  %zero = fcmp oeq float %x0, 0.000000e+00
  %z2 = select i1 %zero, float 0xFFF0000000000000, float %z1
  %neg = fcmp ult float %x0, 0.000000e+00
  %z3 = select i1 %neg, float 0x7FF8000000000000, float %z2
  ret float %z3
"""

_LOG = f"""
define internal float @__fa_log(float %x0) alwaysinline {{
{_LOG_HEAD}\
  %y1 = call float @llvm.fma.f32(float %e, float 0xBF2BD01060000000, float %y0)
  %y2 = call float @llvm.fma.f32(float %z, float -5.000000e-01, float %y1)
  %y3 = fadd float %f, %y2
  %y = call float @llvm.fma.f32(float %e, float 0x3FE6300000000000, float %y3)
{_LOG_TAIL}\
}}
"""

# (f + y2) / ln 2 with 1/ln 2 = 1 + 0.4427...: the large part f is added last but one.
_LOG2 = f"""
define internal float @__fa_log2(float %x0) alwaysinline {{
{_LOG_HEAD}\
  %y2 = call float @llvm.fma.f32(float %z, float -5.000000e-01, float %y0)
  %u0 = fmul float %y2, 0x3FDC551DA0000000
  %u1 = call float @llvm.fma.f32(float %f, float 0x3FDC551DA0000000, float %u0)
  %u2 = fadd float %u1, %y2
  %u3 = fadd float %u2, %f
  %y = fadd float %u3, %e
{_LOG_TAIL}\
}}
"""

FUNCTIONS = {"exp": _EXP, "exp2": _EXP2, "log": _LOG, "log2": _LOG2}

INTRINSICS = {
    "llvm.rint.f32": "declare float @llvm.rint.f32(float)",
    "llvm.fma.f32": "declare float @llvm.fma.f32(float, float, float)",
}
