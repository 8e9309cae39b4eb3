"""Arithmetic, conversions and control flow."""

import torch
import triton
import triton.language as tl
from triton.language.extra.ascend import libdevice

from tests.native.catalogue import Run, catalogue

CASES, case = catalogue()
N = 64


@triton.jit
def add(X, Y, Z, n, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    m = o < n
    x = tl.load(X + o, mask=m, other=0.0)
    y = tl.load(Y + o, mask=m, other=0.0)
    tl.store(Z + o, x + y, mask=m)


@case(add)
def masked_add_leaves_the_tail():
    x, y, z = torch.randn(5000), torch.randn(5000), torch.full((5120,), 7.0)
    expected = torch.cat([x + y, torch.full((120,), 7.0)])
    return Run((x, y, z, 5000), [z], [expected], {"BLOCK": 1024}, (5,), 0)


@triton.jit
def functions(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    a = tl.abs(x)
    y = tl.exp2(x) + tl.log(a + 1.0) + tl.sqrt(a) + tl.rsqrt(a + 1.0) + tl.sigmoid(x)
    y += tl.sin(x) + tl.cos(x) + tl.log2(a + 1.0) + tl.erf(x) + tl.floor(x) + tl.ceil(x)
    tl.store(Y + o, y)


@case(functions)
def elementary_functions():
    x, y = torch.randn(N), torch.zeros(N)
    a = x.abs()
    expected = torch.exp2(x) + torch.log(a + 1) + a.sqrt() + (a + 1).rsqrt() + x.sigmoid()
    expected += x.sin() + x.cos() + torch.log2(a + 1) + torch.erf(x) + x.floor() + x.ceil()
    return Run((x, y), [y], [expected], {"BLOCK": N})


@triton.jit
def library_tanh(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, libdevice.tanh(tl.load(X + o)))


@case(library_tanh)
def libdevice_tanh():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y), [y], [x.tanh()], {"BLOCK": N}, tolerance=1e-6)


@triton.jit
def library_log1p(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, libdevice.log1p(tl.abs(tl.load(X + o))))


@case(library_log1p)
def libdevice_log1p():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y), [y], [x.abs().log1p()], {"BLOCK": N}, tolerance=1e-6)


@triton.jit
def sum_until(X, Y, n):
    i = 0
    total = 0.0
    while i < n and total < 10.0:
        total += tl.load(X + i)
        i += 1
    tl.store(Y, total)


@case(sum_until)
def while_loop():
    x, y = torch.rand(N), torch.zeros(1)
    total = torch.tensor(0.0)
    for value in x:
        if total >= 10:
            break
        total = total + value
    return Run((x, y, N), [y], [total[None]])


@triton.jit
def branch(X, Y, flag, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    if flag > 0:  # noqa: SIM108
        x = x * 2.0
    else:
        x = x - 1.0
    tl.store(Y + o, x)


@case(branch)
def if_else():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y, 0), [y], [x - 1], {"BLOCK": N}, tolerance=0)


@triton.jit
def integers(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    tl.store(Y + o, (x // 3) * 7 + x % 5 + (x >> 1) + (x & 3) + (x ^ 9))


@case(integers)
def integer_arithmetic():
    x, y = torch.randint(0, 1000, (N,), dtype=torch.int32), torch.zeros(N, dtype=torch.int32)
    expected = (x // 3) * 7 + x % 5 + (x >> 1) + (x & 3) + (x ^ 9)
    return Run((x, y), [y], [expected], {"BLOCK": N}, tolerance=0)


@triton.jit
def bfloat16_arithmetic(X, Y, Z, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    y = tl.load(Y + o)
    tl.store(Z + o, (x * y + x).to(tl.bfloat16))


@case(bfloat16_arithmetic)
def bfloat16_is_exact():
    x, y = torch.randn(N).bfloat16(), torch.randn(N).bfloat16()
    z = torch.zeros(N, dtype=torch.bfloat16)
    return Run((x, y, z), [z], [x * y + x], {"BLOCK": N}, tolerance=0)


@triton.jit
def bfloat16_exponential(X, Z, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Z + o, tl.exp(tl.load(X + o).to(tl.float32)).to(tl.bfloat16))


@case(bfloat16_exponential)
def bfloat16_exp_is_exact():
    x, z = torch.randn(N).bfloat16(), torch.zeros(N, dtype=torch.bfloat16)
    return Run((x, z), [z], [x.float().exp().bfloat16()], {"BLOCK": N}, tolerance=0)


@triton.jit
def float16_maximum(X, Z, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    tl.store(Z + o, tl.maximum(x, 0.5) + tl.max(x, 0))


@case(float16_maximum)
def float16_max():
    x, z = torch.randn(N).half(), torch.zeros(N, dtype=torch.half)
    return Run((x, z), [z], [x.clamp(min=0.5) + x.max()], {"BLOCK": N}, tolerance=0)


@triton.jit
def to_float16(X, Z, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Z + o, tl.load(X + o).to(tl.float16))


@case(to_float16)
def float16_overflow_and_rounding():
    values = [65519.0, 65520.0, 1e30, -1e30, float("nan"), 6e-8, 1e-9, 2049.0]
    x, z = torch.tensor(values * 2), torch.zeros(16, dtype=torch.half)
    return Run((x, z), [z], [x.half()], {"BLOCK": 16}, tolerance=0)


@triton.jit
def twice(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.load(X + o) * 2.0)


@case(twice)
def float64():
    x, y = torch.randn(N).double(), torch.zeros(N).double()
    return Run((x, y), [y], [x * 2], {"BLOCK": N}, tolerance=0)


@triton.jit
def positive(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.load(X + o) > 0.0)


@case(positive)
def bool_store():
    x, y = torch.randn(N), torch.zeros(N, dtype=torch.bool)
    return Run((x, y), [y], [x > 0], {"BLOCK": N}, tolerance=0)


@triton.jit
def _larger_and_smaller(a, b):
    larger = tl.maximum(a, b)
    return larger, a + b - larger


@triton.jit
def calls_function(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    larger, smaller = _larger_and_smaller(tl.load(X + o), 0.25)
    tl.store(Y + o, larger * 2.0 + smaller)


@case(calls_function)
def jit_function_with_two_results():
    x, y = torch.randn(N), torch.zeros(N)
    expected = x.clamp(min=0.25) * 2 + x.clamp(max=0.25)
    return Run((x, y), [y], [expected], {"BLOCK": N})


@triton.jit
def unrolled(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    for i in tl.static_range(4):
        x = x * 0.5 + i
    tl.store(Y + o, x)


@case(unrolled)
def static_range():
    x, y = torch.randn(N), torch.zeros(N)
    expected = x
    for i in range(4):
        expected = expected * 0.5 + i
    return Run((x, y), [y], [expected], {"BLOCK": N})


@triton.jit
def hints(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    tl.compile_hint(x, "dot_pad_only_k")
    tl.device_assert(x > -100.0, "small")
    tl.store(Y + o, x + 1.0)
    tl.debug_barrier()


@case(hints)
def hints_asserts_and_barriers():
    x, y = torch.randn(N), torch.zeros(N)
    return Run((x, y), [y], [x + 1], {"BLOCK": N}, tolerance=0)


@triton.jit
def parallel_halves(X, Y):
    for i in tl.parallel(0, 2, bind_sub_block=True):
        o = i * 32 + tl.arange(0, 32)
        tl.store(Y + o, tl.load(X + o) + 1.0)


@case(parallel_halves)
def parallel_loop():
    x, y = torch.randn(64), torch.zeros(64)
    return Run((x, y), [y], [x + 1], tolerance=0)


@triton.jit
def position(Y):
    i = tl.program_id(2)
    i = tl.program_id(1) + tl.num_programs(1) * i
    i = tl.program_id(0) + tl.num_programs(0) * i
    tl.store(Y + i, i + 1)


@case(position)
def three_dimensional_grid():
    y = torch.zeros(60, dtype=torch.int32)
    return Run((y,), [y], [torch.arange(60) + 1], grid=(3, 4, 5), tolerance=0)
