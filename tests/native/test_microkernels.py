"""Micro-kernels by themselves, against float64: shapes, strides, layouts, infinities and NaN."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import pytest
import torch

from fa_triton.native import micro_amx, micro_fma, micro_rows
from fa_triton.native.micro_calls import define_kernels
from fa_triton.native.micro_exp_sum import ExpSum
from fa_triton.native.micro_matmul import Matmul
from fa_triton.native.microkernels import mark_kernels
from fa_triton.native.object_code import HostCpu, compile_object, host_cpu, load_object

CPU = host_cpu()
DTYPES = {"bf16": torch.bfloat16, "f16": torch.float16, "f32": torch.float32}
EPSILON = 2.0**-24
pytestmark = pytest.mark.skipif(not CPU.lanes, reason="needs AVX2")
# Code for either width: a CPU without 512-bit vectors takes two of its own for one.
WIDTHS = {8: HostCpu("", "+avx2,+fma,+f16c"), 16: HostCpu("", "+avx512f")}
needs_avx512 = pytest.mark.skipif(not CPU.has_avx512, reason="needs AVX-512")
needs_amx = pytest.mark.skipif(not CPU.has_amx, reason="needs AMX")
UNITS = [pytest.param("amx", marks=needs_amx), "fma", "rows"]
LANES = list(WIDTHS)


def build(spec: Matmul | ExpSum, ranks: tuple[int, ...], cpu: HostCpu = CPU) -> Callable[..., None]:
    """Compile a kernel behind a function of tensors."""
    kinds, call, parameters = [], [], []
    for number, rank in enumerate(ranks):
        kinds.append(", ".join(["ptr, ptr, i64"] + ["i64"] * 2 * rank))
        parameters.append(f"ptr %p{number}, i64 %s{number}")
        # The element offset is not 0, so that it counts.
        strides = f"i64 0, i64 0, i64 %s{number}, i64 1" if rank == 2 else "i64 0, i64 1"
        call.append(f"ptr null, ptr %p{number}, i64 16, {strides}")
    text = (
        f"declare void @{spec.name}({', '.join(kinds)})\n"
        f"define void @go({', '.join(parameters)}) {{\n"
        f"  call void @{spec.name}({', '.join(call)})\n  ret void\n}}\n"
    )
    code = load_object(compile_object(define_kernels(text, cpu)), "go")
    types = [ctypes.c_void_p, ctypes.c_int64] * len(ranks)
    function = ctypes.CFUNCTYPE(None, *types)(code.address)

    def run(*tensors: torch.Tensor) -> None:
        assert code.engine
        values = []
        for tensor in tensors:
            values += [tensor.data_ptr() - 16 * tensor.element_size(), tensor.stride(0)]
        function(*values)

    return run


def strided(m: int, n: int, dtype: torch.dtype, pad: int) -> torch.Tensor:
    """A normal matrix whose rows lie ``pad`` elements apart."""
    return torch.randn(m, n + pad).to(dtype)[:, :n]


def check_matmul(spec: Matmul, pad: int = 0, cpu: HostCpu = CPU) -> None:
    dtype = DTYPES[spec.element]
    a = strided(spec.m, spec.k, dtype, pad)
    b = strided(*((spec.n, spec.k) if spec.transposed else (spec.k, spec.n)), dtype, 3 * pad)
    if spec.integers:
        b = (64 * b).clamp(-128, 127).to(torch.int8)
    whole = torch.randn(spec.m + 2, spec.n + 2 * pad + 32)
    before, c = whole.clone(), whole[1:-1, 16 : 16 + spec.n]
    scale = torch.rand(spec.m)
    right = b.double().T if spec.transposed else b.double()
    start = 0.0 if spec.fresh else c.double() * (scale.double()[:, None] if spec.scaled else 1.0)
    expected = a.double() @ right + start
    size = a.double().abs() @ right.abs() + abs(start)
    if spec.fresh:
        c.fill_(float("nan"))
    build(spec, (2, 2, 2, 1)[: 3 + spec.scaled], cpu)(a, b, c, *([scale] * spec.scaled))
    assert ((c.double() - expected).abs() <= (spec.k**0.5 + 4) * EPSILON * size).all()
    whole[1:-1, 16 : 16 + spec.n] = before[1:-1, 16 : 16 + spec.n]
    assert torch.equal(whole, before), "wrote outside"


SIZES = {
    "amx": [(16, 16, 32), (32, 16, 64), (16, 48, 32), (64, 64, 128)],
    "fma": [(8, 16, 16), (24, 48, 48), (16, 32, 256)],
    "rows": [(1, 16, 32), (3, 48, 64), (4, 128, 128), (5, 32, 96), (7, 64, 256), (8, 16, 32)],
}
ENDS = [("", False), ("new", True), ("scaled", False), ("", True), ("new", False), ("scaled", True)]


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize("unit", UNITS)
def test_matmul(unit: str, element: str, lanes: int) -> None:
    if unit == "amx" and (element, lanes) not in (("bf16", 16), ("f16", 16)):
        pytest.skip("no such kernel")
    torch.manual_seed(0)
    for number, (end, transposed) in enumerate(ENDS):
        m, n, k = SIZES[unit][number % len(SIZES[unit])]
        spec = Matmul(unit, m, n, k, element, transposed, end == "new", end == "scaled")
        assert Matmul.parse(spec.name) == spec
        check_matmul(spec, pad=8 * (number % 2), cpu=WIDTHS[lanes])


# Every row count up to two groups of rows, and whole groups beyond.
FEW_ROWS = [
    (lanes, m) for lanes in LANES for m in (*range(1, 9), *((12, 16) if lanes == 8 else ()))
]


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize(("lanes", "m"), FEW_ROWS)
def test_every_number_of_few_rows(lanes: int, m: int, transposed: bool) -> None:
    """Each with all types of B, with one panel and several, one chunk of k and several."""
    torch.manual_seed(m)
    sizes = [(8, 4), (1, 2), (3, 6), (4, 8), (10, 10), (2, 12)]
    forms = [(element, integers) for element in DTYPES for integers in (False, True)]
    for number, (element, integers) in enumerate(forms):
        n, k = (x * lanes for x in sizes[(number + m) % len(sizes)])
        end = (number + m // 2) % 3
        spec = Matmul("rows", m, n, k, element, transposed, end == 1, end == 2, integers)
        check_matmul(spec, pad=(0, 1, 8)[(number + m) % 3], cpu=WIDTHS[lanes])


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("right", ["bf16", "f16", "f32", "i8"])
def test_tiles_of_decode(right: str, transposed: bool, lanes: int) -> None:
    """The sizes of a decode step: as many keys and columns as a tile has."""
    torch.manual_seed(1)
    for number, m in enumerate((1, 2, 4, 8, *((16,) if lanes == 8 else ()))):
        n, k = (128, 64) if transposed else (64, 128)
        element = "bf16" if right == "i8" else right
        end = number % 3
        spec = Matmul("rows", m, n, k, element, transposed, end == 1, end == 2, right == "i8")
        check_matmul(spec, pad=(0, 64, 3)[number % 3], cpu=WIDTHS[lanes])


@pytest.mark.parametrize("transposed", [False, True])
def test_few_rows_are_reproducible(transposed: bool) -> None:
    torch.manual_seed(2)
    a, b = torch.randn(8, 128).bfloat16(), torch.randn(128, 128).bfloat16()
    first, second = torch.zeros(8, 128), torch.zeros(8, 128)
    kernel = build(Matmul("rows", 8, 128, 128, "bf16", transposed, fresh=True), (2, 2, 2))
    kernel(a, b, first)
    kernel(a, b, second)
    assert torch.equal(first, second)


@pytest.mark.parametrize("lanes", LANES)
@pytest.mark.parametrize("element", DTYPES)
def test_matmul_with_stored_integers(element: str, lanes: int) -> None:
    torch.manual_seed(0)
    for number, (end, transposed) in enumerate(ENDS):
        m, n, k = SIZES["rows"][number % len(SIZES["rows"])]
        ends = (transposed, end == "new", end == "scaled", True)
        spec = Matmul("rows", m, n, k, element, *ends)
        assert Matmul.parse(spec.name) == spec
        check_matmul(spec, pad=8 * (number % 2), cpu=WIDTHS[lanes])


@pytest.mark.parametrize("transposed", [False, True])
@pytest.mark.parametrize("element", ["bf16", "f16"])
@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("value", [float("inf"), -float("inf"), float("nan")])
def test_no_numbers(unit: str, element: str, transposed: bool, value: float) -> None:
    """They reach what they take part in and nothing else."""
    torch.manual_seed(0)
    m = 4 if unit == "rows" else 16
    a = torch.randn(m, 32).to(DTYPES[element])
    b = torch.randn(16, 32).to(DTYPES[element])
    a[1, 3], b[2, 5] = value, value
    c = torch.zeros(m, 16)
    right = b if transposed else b.T.contiguous()
    build(Matmul(unit, m, 16, 32, element, transposed), (2, 2, 2))(a, right, c)
    expected = (a.double() @ b.double().T).float()
    torch.testing.assert_close(c, expected, rtol=1e-4, atol=1e-4, equal_nan=True)


@needs_amx
def test_range_of_fp16() -> None:
    """Denormal and largest numbers keep their value in two pieces."""
    bits = torch.arange(0, 0x7C00, dtype=torch.int32)[: 16 * 1984].to(torch.int16)
    a = bits.view(torch.float16).reshape(-1, 16, 32)
    one = torch.zeros(32, 16, dtype=torch.float16)
    c, kernel = torch.zeros(16, 16), build(Matmul("amx", 16, 16, 32, "f16", fresh=True), (2, 2, 2))
    for shift in (0, 16):
        one.zero_()
        one[shift : shift + 16] = torch.eye(16, dtype=torch.float16)
        for part in a:
            kernel(part.contiguous(), one, c)
            assert torch.equal(c, part[:, shift : shift + 16].float())


FORMS = [
    pytest.param(CPU.features, id="host"),
    pytest.param("+avx512f,-avx512bf16", id="avx512", marks=needs_avx512),
    pytest.param("+avx2,+fma,+f16c", id="avx2"),
]


@pytest.mark.parametrize("features", FORMS)
@pytest.mark.parametrize("element", DTYPES)
@pytest.mark.parametrize(("m", "n"), [(1, 16), (3, 64), (16, 48), (64, 128)])
def test_exp_sum(m: int, n: int, element: str, features: str) -> None:
    torch.manual_seed(0)
    spec = ExpSum(m, n, element)
    assert ExpSum.parse(spec.name) == spec
    s, maxima, sums = 4 * torch.randn(m, n), 8 + torch.rand(m), torch.rand(m)
    s[0, :4] = torch.tensor([-1e30, -float("inf"), 200.0, -80.0])
    exact = (s - maxima[:, None]).double().exp()
    expected = sums.double() + exact.sum(1)
    p = torch.full((m, n), float("nan"), dtype=DTYPES[element])
    build(spec, (2, 1, 2, 1), HostCpu(CPU.name, features))(s, maxima, p, sums)
    rounding = {"bf16": 2.0**-8, "f16": 2.0**-11, "f32": 2.0**-22}[element]
    finite = exact < 65504.0
    error = (p.double() - exact).abs()[finite]
    smallest = 2.0**-25 if element == "f16" else 2.0**-126
    assert (error <= 1.01 * rounding * exact[finite] + smallest).all()
    assert p[0, 2] == float("inf")
    torch.testing.assert_close(sums[1:].double(), expected[1:], rtol=1e-6, atol=0)
    assert sums[0] == float("inf")


@pytest.mark.parametrize("features", FORMS)
def test_exp_sum_of_no_numbers(features: str) -> None:
    s, maxima, sums = torch.zeros(2, 16), torch.zeros(2), torch.zeros(2)
    s[0, 3] = float("nan")
    p = torch.zeros(2, 16, dtype=torch.bfloat16)
    cpu = HostCpu(CPU.name, features)
    build(ExpSum(2, 16, "bf16"), (2, 1, 2, 1), cpu)(s, maxima, p, sums)
    assert p.isnan().nonzero().tolist() == [[0, 3]]
    assert sums.isnan().tolist() == [True, False]


@pytest.mark.parametrize("features", FORMS)
def test_exp_sum_up_to_the_largest_number(features: str) -> None:
    """Results between 2^127 and the largest float are no infinities."""
    s = torch.tensor([[88.0, 88.5, 88.7, 88.72, 88.73, 89.5, float("inf"), -200.0] * 2])
    p, sums = torch.zeros(1, 16), torch.zeros(1)
    build(ExpSum(1, 16, "f32"), (2, 1, 2, 1), HostCpu(CPU.name, features))(
        s, torch.zeros(1), p, sums
    )
    torch.testing.assert_close(p, s.double().exp().float(), rtol=1e-6, atol=0)


MATMUL = (
    "    %z = arith.constant 0.000000e+00 : f32\n"
    "    %0 = linalg.fill ins(%z : f32) outs(%e : tensor<{m}x64xf32>) -> tensor<{m}x64xf32>\n"
    '    %1 = linalg.matmul {{input_precison = "ieee"}} ins(%a, %b : tensor<{m}x{k}x{left}>,'
    " tensor<{k}x64x{right}>) outs(%0 : tensor<{m}x64xf32>) -> tensor<{m}x64xf32>\n"
)


@pytest.mark.parametrize(
    ("m", "k", "left", "right", "features", "kernel"),
    [
        (64, 64, "bf16", "bf16", "+avx512f,+avx512bw,+amx-tile,+amx-bf16", "amx_64x64x64_bf16_new"),
        (64, 64, "f32", "f32", "+avx512f,+avx512bw,+amx-tile,+amx-bf16", "fma_64x64x64_f32_new"),
        (64, 64, "bf16", "bf16", "+avx512f", "fma_64x64x64_bf16_new"),
        (2, 64, "f16", "f16", "+avx512f", "rows_2x64x64_f16_new"),
        (64, 64, "bf16", "bf16", "+avx2,+fma,+f16c", "fma_64x64x64_bf16_new"),
        (16, 64, "bf16", "bf16", "+avx2,+fma,+f16c", "rows_16x64x64_bf16_new"),
        (16, 32, "bf16", "bf16", "+avx2,+fma,+f16c", "fma_16x64x32_bf16_new"),
        (20, 64, "bf16", "bf16", "+avx2,+fma,+f16c", "fma_20x64x64_bf16_new"),
        (64, 64, "bf16", "bf16", "+avx2", None),
        (64, 64, "bf16", "f32", "+avx512f", None),
        (12, 64, "bf16", "bf16", "+avx512f", None),
        (64, 8, "bf16", "bf16", "+avx512f", None),
    ],
)
def test_choice(m: int, k: int, left: str, right: str, features: str, kernel: str | None) -> None:
    text = MATMUL.format(m=m, k=k, left=left, right=right)
    marked = mark_kernels(text, HostCpu("", features))
    assert (f'"fa_matmul_{kernel}"' in marked) if kernel else marked == text


def test_limits() -> None:
    assert not micro_rows.fits(9, 128, 128, 16)
    assert micro_rows.fits(8, 8, 16, 8)
    assert micro_rows.fits(16, 64, 64, 8)
    assert not micro_rows.fits(16, 64, 32, 8)
    assert not micro_rows.fits(16, 32, 64, 8)
    assert not micro_rows.fits(17, 64, 64, 8)
    assert not micro_rows.fits(16, 8192, 16384, 8)
    assert not micro_rows.fits(8, 8, 16, 16)
    assert not micro_amx.fits(64, 64, 16)
    assert not micro_fma.fits(12, 16, 16, 16)
    assert micro_fma.fits(12, 16, 16, 8)
    assert not micro_fma.fits(4096, 4096, 4096, 16)
