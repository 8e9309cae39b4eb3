"""The error budget lets a good kernel pass and no fault of the usual kinds."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton.reference import flash_attn_eager, flash_attn_emulation, flash_attn_reference
from tests.oracle import assert_accurate, compare, measure

OPTIONS: dict[str, Any] = {"mask_mode": 3, "softmax_scale": 0.125, "return_softmax_lse": True}


def make_inputs(dtype: torch.dtype, spread: float = 1.0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    shapes = ((1, 60, 4, 64), (1, 200, 2, 64), (1, 200, 2, 64))
    return [
        ((torch.rand(shape, generator=generator) * 2 - 1) * spread).to(dtype) for shape in shapes
    ]


def online(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, block: int = 64
) -> tuple[torch.Tensor, torch.Tensor]:
    """One causal sequence as a kernel computes it: fp32, key tiles, a running maximum."""
    q_len, kv_len = q.shape[1], k.shape[1]
    group = q.shape[2] // k.shape[2]
    b_q = q[0].transpose(0, 1).float()
    b_k, b_v = (x[0].transpose(0, 1).float().repeat_interleave(group, 0) for x in (k, v))
    m = torch.full(b_q.shape[:2], -torch.inf)
    total, acc = torch.zeros_like(m), torch.zeros_like(b_q)
    i_row = torch.arange(q_len)[:, None] + kv_len - q_len
    for start in range(0, kv_len, block):
        stop = min(start + block, kv_len)
        s = b_q @ b_k[:, start:stop].mT * 0.125
        s = s.masked_fill(torch.arange(start, stop)[None] > i_row, -torch.inf)
        m_new = torch.maximum(m, s.amax(-1))
        p, alpha = torch.exp(s - m_new[..., None]), torch.exp(m - m_new)
        total = total * alpha + p.sum(-1)
        acc = acc * alpha[..., None] + p.to(q.dtype).float() @ b_v[:, start:stop]
        m = m_new
    out = (acc / total[..., None]).to(q.dtype)
    return out.transpose(0, 1)[None], (m + total.log())[None]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("spread", [1.0, 5.0, 10.0])
def test_an_online_softmax_passes(dtype: torch.dtype, spread: float) -> None:
    q, k, v = make_inputs(dtype, spread)
    report = assert_accurate(*online(q, k, v), q, k, v, vendor=spread >= 5, **OPTIONS)
    assert report.error.rms < report.rms_limit
    assert "emulation" in str(report)
    assert "eager" in str(report)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_arithmetic_in_the_input_dtype_fails(dtype: torch.dtype) -> None:
    q, k, v = make_inputs(dtype)
    out, lse = flash_attn_eager(q, k, v, **OPTIONS)
    faults = compare(out, lse, q, k, v, **OPTIONS).faults
    assert any("rms" in fault for fault in faults)
    assert any("lse" in fault for fault in faults)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_one_key_too_many_fails(dtype: torch.dtype) -> None:
    q, k, v = make_inputs(dtype)
    wrong = OPTIONS | {"mask_mode": 4, "win_right": 1}
    out, lse = flash_attn_emulation(q, k, v, **wrong)
    faults = compare(out, lse, q, k, v, **OPTIONS).faults
    assert any("rms" in fault for fault in faults)
    assert any("lse" in fault for fault in faults)


def test_one_wrong_element_fails() -> None:
    q, k, v = make_inputs(torch.bfloat16)
    out, lse = flash_attn_emulation(q, k, v, **OPTIONS)
    assert not compare(out, lse, q, k, v, **OPTIONS).faults
    for wrong in (out[0, 30, 2, 5] + 0.05, torch.nan, torch.inf):
        spoilt = out.clone()
        spoilt[0, 30, 2, 5] = wrong
        faults = compare(spoilt, lse, q, k, v, **OPTIONS).faults
        assert any("largest" in fault for fault in faults)
        with pytest.raises(AssertionError, match="FAULT"):
            assert_accurate(spoilt, lse, q, k, v, **OPTIONS)


def test_faults_of_the_log_sum_exp() -> None:
    q, k, v = make_inputs(torch.float16)
    options = OPTIONS | {"seqused_kv": torch.tensor([30], dtype=torch.int32)}
    out, lse = flash_attn_emulation(q, k, v, **options)
    assert (lse == torch.inf).any()
    assert not compare(out, lse, q, k, v, **options).faults
    for spoilt in (lse.nan_to_num(posinf=-torch.inf), lse.nan_to_num(posinf=0.0), lse + 1e-3):
        assert compare(out, spoilt, q, k, v, **options).faults
    assert compare(out, lse.double(), q, k, v, **options).faults
    assert compare(out, lse[..., :-1], q, k, v, **options).faults
    base_two = lse / torch.log(torch.tensor(2.0))
    assert compare(out, base_two, q, k, v, **options).faults


@pytest.mark.parametrize(
    ("dtype", "cap", "is_fine"),
    [
        (torch.float16, 50.0, True),
        (torch.float32, 50.0, False),
        (torch.float16, 1e4, False),
    ],
    ids=str,
)
def test_a_short_soft_cap_costs_its_last_digit(
    dtype: torch.dtype, cap: float, is_fine: bool
) -> None:
    q, k, v = make_inputs(dtype)
    options = OPTIONS | {"softcap": cap}
    out, lse = flash_attn_emulation(q, k, v, **options)
    _, exact = flash_attn_reference(q, k, v, out_dtype=torch.float64, **options)
    off = (exact + 2**-23 * cap).float()
    assert bool(compare(out, off, q, k, v, **options).faults) is not is_fine
    assert compare(out, lse + 4 * 2**-23 * cap, q, k, v, **options).faults


def test_wrong_shape_or_dtype_fails() -> None:
    q, k, v = make_inputs(torch.float16)
    out, lse = flash_attn_emulation(q, k, v, **OPTIONS)
    assert compare(out.float(), lse, q, k, v, **OPTIONS).faults
    assert compare(out.transpose(1, 2), lse, q, k, v, **OPTIONS).faults


def test_vendor_tolerance() -> None:
    exact = torch.ones(1000, dtype=torch.float64)
    result = exact.to(torch.float16)
    result[:7] = 1.01
    assert measure(result, exact, torch.float16).vendor_fail_ratio == pytest.approx(0.007)
    assert measure(result.float(), exact, torch.float32).vendor_fail_ratio == 0
