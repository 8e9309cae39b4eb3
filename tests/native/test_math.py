"""exp, exp2, log and log2: accuracy over dense points, and torch's special values."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner

BLOCK = 1024
POINTS = 1 << 20
INF, NAN = float("inf"), float("nan")
SPECIAL = [
    0.0, -0.0, INF, -INF, NAN, 1.0, -1.0, 1e-40, -1e-40, 128.0, 127.9999, -126.0, -126.5, -149.0,
    -150.0, -200.0, 200.0, 88.72, 88.73, -87.3, -103.9, -104.0, 3.4e38, -3.4e38,
]  # fmt: skip


@triton.jit
def function(X, Y, n, NAME: tl.constexpr, BLOCK: tl.constexpr):
    o = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(X + o, mask=o < n, other=0.0)
    if NAME == "exp":
        y = tl.exp(x)
    elif NAME == "exp2":
        y = tl.exp2(x)
    elif NAME == "log":
        y = tl.log(x)
    else:
        y = tl.log2(x)
    tl.store(Y + o, y, mask=o < n)


def evaluate(name: str, x: torch.Tensor) -> torch.Tensor:
    y = torch.empty_like(x)
    runner(function)[(triton.cdiv(len(x), BLOCK),)](x, y, len(x), NAME=name, BLOCK=BLOCK)
    return y


def positive_points() -> torch.Tensor:
    halves = POINTS // 2
    return torch.cat([torch.logspace(-37.9, 38, halves), torch.linspace(0.4, 2.5, halves)])


@pytest.mark.parametrize(
    ("name", "reference", "points", "limit"),
    [
        ("exp", torch.exp, lambda: torch.linspace(-87.3, 88.7, POINTS), 1.0e-7),
        ("exp2", torch.exp2, lambda: torch.linspace(-126, 127.99, POINTS), 1.0e-7),
        ("log", torch.log, positive_points, 1.2e-7),
        ("log2", torch.log2, positive_points, 1.5e-7),
    ],
)
def test_relative_error(
    name: str,
    reference: Callable[[torch.Tensor], torch.Tensor],
    points: Callable[[], torch.Tensor],
    limit: float,
) -> None:
    x = points()
    expected = reference(x.double())
    error = ((evaluate(name, x).double() - expected) / expected)[expected != 0].abs().max()
    assert error <= limit


@pytest.mark.parametrize("name", ["exp", "exp2"])
def test_denormal_results_are_exact_to_one_unit(name: str) -> None:
    x = torch.linspace(-150, -126, 1 << 16) if name == "exp2" else torch.linspace(-104, -87.4, 9999)
    expected = getattr(torch, name)(x.double())
    assert (evaluate(name, x).double() - expected).abs().max() <= 1.5e-45


@pytest.mark.parametrize("name", ["exp", "exp2", "log", "log2"])
def test_special_values_are_those_of_torch(name: str) -> None:
    x = torch.tensor(SPECIAL)
    expected = getattr(torch, name)(x.double()).float()
    torch.testing.assert_close(evaluate(name, x), expected, rtol=2e-7, atol=1.5e-45, equal_nan=True)


def test_log2_of_powers_of_two_is_exact() -> None:
    exponents = torch.arange(-126, 128)
    x = torch.ldexp(torch.ones(()), exponents)
    assert torch.equal(evaluate("log2", x), exponents.float())


@triton.jit
def half_exponential(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.exp(tl.load(X + o).to(tl.float32)).to(tl.float16))


def test_exp_of_half() -> None:
    x = torch.linspace(-20, 12, 1024).half()
    y = torch.empty_like(x)
    runner(half_exponential)[1](x, y, BLOCK=1024)
    torch.testing.assert_close(y, x.float().exp().half(), rtol=0, atol=0)


@triton.jit
def divide(X, Y, QUOTIENT, REST, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    y = tl.load(Y + o)
    tl.store(QUOTIENT + o, x // y)
    tl.store(REST + o, x % y)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_integer_division_never_traps(dtype: torch.dtype) -> None:
    lowest = torch.iinfo(dtype).min
    x = torch.tensor([7, -7, 0, lowest, lowest, 5, -5, 9] * 2, dtype=dtype)
    y = torch.tensor([2, 2, 0, 0, -1, 0, -1, 4] * 2, dtype=dtype)
    quotient, rest = torch.full_like(x, 99), torch.full_like(x, 99)
    runner(divide)[1](x, y, quotient, rest, BLOCK=16)
    assert quotient.tolist() == [3, -3, 0, 0, lowest, 0, 5, 2] * 2
    assert rest.tolist() == [1, -1, 0, 0, 0, 0, 0, 1] * 2


@triton.jit
def divide_scalars(Y, a, b):
    tl.store(Y, a // b)


def test_division_by_a_zero_argument() -> None:
    y = torch.full((1,), 99, dtype=torch.int32)
    runner(divide_scalars)[1](y, 17, 0)
    assert y.item() == 0
