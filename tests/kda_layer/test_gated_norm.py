"""``rms_norm_gated`` against its definition in float64."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton import rms_norm_gated


def rand(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def check(
    x: torch.Tensor,
    gate: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    eps: float = 1e-5,
    activation: str = "sigmoid",
) -> torch.Tensor:
    out = rms_norm_gated(x, gate, weight, bias, eps=eps, activation=activation)
    wide, g = x.double(), gate.double()
    wanted = wide / (wide.pow(2).mean(-1, keepdim=True) + eps).sqrt() * weight.double()
    wanted = wanted + (0.0 if bias is None else bias.double())
    wanted = wanted * (g.sigmoid() if activation == "sigmoid" else g * g.sigmoid())
    assert out.shape == x.shape
    assert out.dtype == x.dtype
    assert out.is_contiguous()
    rounding = torch.finfo(x.dtype).eps / 2 * wanted.abs()
    limit = 1.01 * rounding + 2e-6 * wanted.abs().amax(-1, keepdim=True) + 1e-7
    assert bool(((out.double() - wanted).abs() <= limit).all())
    return out


@pytest.mark.parametrize("activation", ["sigmoid", "silu", "swish"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_every_gate_and_dtype(dtype: torch.dtype, activation: str) -> None:
    x, gate = rand(37, 4, 128, dtype=dtype), rand(37, 4, 128, dtype=dtype, seed=1)
    check(x, gate, rand(128, dtype=torch.float32, seed=2), activation=activation)


@pytest.mark.parametrize("dim", [1, 16, 80, 128, 256, 500, 512, 1024])
def test_every_row_length(dim: int) -> None:
    x, gate = rand(9, dim), rand(9, dim, seed=1)
    check(x, gate, rand(dim, seed=2), rand(dim, dtype=torch.float32, seed=3), eps=1e-3)


@pytest.mark.parametrize("shape", [(64,), (1, 64), (2, 3, 5, 64), (0, 64), (3, 0, 64)])
def test_any_leading_shape(shape: tuple[int, ...]) -> None:
    x, gate, weight = rand(*shape), rand(*shape, seed=1), rand(64, seed=2)
    if not x.numel():
        assert rms_norm_gated(x, gate, weight).shape == shape
        return
    check(x, gate, weight)


def test_rows_may_be_strided() -> None:
    """Cut out of a wider projection, heads first, and columns apart (which copies)."""
    weight = rand(64, seed=2)
    wide = torch.full((11, 4, 200), torch.nan, dtype=torch.bfloat16)
    wide[..., 8:72] = rand(11, 4, 64)
    x, gate = wide[..., 8:72], rand(11, 4, 64, seed=1)
    expected = check(x, gate, weight)
    assert torch.equal(expected, check(x.contiguous(), gate, weight))
    heads_first = gate.transpose(0, 1).contiguous().transpose(0, 1)
    assert torch.equal(expected, check(x, heads_first, weight))
    apart = torch.stack([gate, torch.full_like(gate, torch.nan)], -1)[..., 0]
    assert torch.equal(expected, check(x, apart, weight))


def test_one_row_may_be_strided() -> None:
    x, gate, weight = rand(64), rand(64, seed=1), rand(64, seed=2)
    apart = torch.stack([x, torch.full_like(x, torch.nan)], -1)[:, 0]
    assert torch.equal(check(x, gate, weight), check(apart, gate, weight))


def test_large_values_and_zero_rows_stay_finite(nan_filled_memory: None) -> None:
    x, gate = rand(8, 128, dtype=torch.float32), rand(8, 128, dtype=torch.float32, seed=1) * 1e4
    x[0], x[1] = 0.0, x[1] * 1e15
    for activation in ("sigmoid", "silu"):
        out = rms_norm_gated(x, gate, torch.ones(128), activation=activation)
        assert torch.isfinite(out).all()
        assert not out[0].any()


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 70), st.integers(1, 5), st.sampled_from([48, 128]), st.booleans())
def test_any_number_of_rows(rows: int, heads: int, dim: int, is_strided: bool) -> None:
    x, gate = rand(rows, heads, dim), rand(rows, heads, dim, seed=1)
    if is_strided:
        gate = gate.transpose(0, 1).contiguous().transpose(0, 1)
    check(x, gate, rand(dim, seed=2))


def test_reference_mode_answers_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    x, gate, weight = rand(5, 2, 48), rand(5, 2, 48, seed=1), rand(48, seed=2)
    native = rms_norm_gated(x, gate, weight, activation="silu")
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    plain = rms_norm_gated(x, gate, weight, activation="silu")
    torch.testing.assert_close(plain, native, atol=0.02, rtol=0.02)
