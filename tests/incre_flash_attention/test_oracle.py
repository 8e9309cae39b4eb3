"""The oracle against the definition written out, and its emulation of what kernels store."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, given, settings

from fa_triton.incremental_reference import incre_flash_attention_reference
from tests.incre_flash_attention.batches import IncreBatch
from tests.incre_flash_attention.by_the_letter import attend_by_the_letter
from tests.incre_flash_attention.examples import incre_batches


@settings(max_examples=60, derandomize=True, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=incre_batches(longest=9, max_tokens=3, max_batch=2, head_dims=(16,)))
def test_oracle_follows_the_letter(batch: IncreBatch) -> None:
    call = batch.call()
    out, lse = incre_flash_attention_reference(**call, out_dtype=torch.float64)
    letter, letter_lse = attend_by_the_letter(**call)
    if batch.output_quant:
        out = out.round()
    torch.testing.assert_close(out, letter, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(lse, letter_lse, atol=1e-9, rtol=1e-9)


def test_emulation_rounds_dequantised_keys_weights_and_the_result() -> None:
    batch = IncreBatch((40, 33), heads=(4, 2), head_dim=32, quant="per_channel")
    call = batch.call()
    exact, _ = incre_flash_attention_reference(**call, out_dtype=torch.float64)
    rounded, _ = incre_flash_attention_reference(**call)
    emulated, _ = incre_flash_attention_reference(**call, emulate=True)
    assert rounded.dtype == emulated.dtype == torch.float16
    errors = [(out.double() - exact).square().mean().sqrt() for out in (rounded, emulated)]
    assert errors[0] < errors[1] < 4 * errors[0]


def test_the_mean_of_a_hidden_row_does_not_ask_its_bias() -> None:
    batch = IncreBatch((30, 0, 7), heads=(4, 2), layout="BSND", mask="2", hides_all=0, bias="batch")
    call = batch.but(options={"masked_row": "mean"}).call()
    call["pse_shift"][0, ..., 5:] = -torch.inf
    out, lse = incre_flash_attention_reference(**call, out_dtype=torch.float64)
    letter, letter_lse = attend_by_the_letter(**call)
    torch.testing.assert_close(out, letter, atol=1e-9, rtol=1e-9)
    torch.testing.assert_close(lse, letter_lse, atol=1e-9, rtol=1e-9)
