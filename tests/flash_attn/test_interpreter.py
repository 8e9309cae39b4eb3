"""``FA_TRITON_CPU=interpreter``: the attention kernels run step by step, with the same results."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from fa_triton.device import CPU_MODE_VARIABLE

COMMON = """
import torch
from fa_triton import flash_attn, flash_attn_metadata, incre_flash_attention
from fa_triton.incremental_reference import incre_flash_attention_reference
from fa_triton.reference import flash_attn_reference

torch.manual_seed(0)

def compare(q, k, v, metadata=None, **options):
    options |= {"softmax_scale": 0.25, "return_softmax_lse": True}
    out, lse = flash_attn(q, k, v, metadata=metadata, **options)
    exact, exact_lse = flash_attn_reference(q, k, v, **options)
    limit = 2e-6 if q.dtype == torch.float32 else 1e-2
    torch.testing.assert_close(out.float(), exact.float(), rtol=limit, atol=limit)
    torch.testing.assert_close(lse, exact_lse.float(), rtol=1e-5, atol=1e-5)
"""
MASKS = """
for dtype in (torch.float32, torch.bfloat16, torch.float16):
    q, (k, v) = torch.randn(1, 3, 4, 16).to(dtype), torch.randn(2, 1, 40, 2, 16).to(dtype)
    compare(q, k, v, mask_mode=4, win_left=20, win_right=0, softcap=3.0, sinks=torch.randn(4))
    compare(q, k, v, mask_mode=3, alibi_slopes=torch.rand(4))
"""
PLANS = """
q, pages = torch.randn(2, 1, 4, 16).bfloat16(), torch.randn(2, 9, 16, 2, 16).bfloat16()
table = torch.randperm(8).int().view(2, 4) + 1
lengths = torch.tensor([60, 7], dtype=torch.int32)
compare(q, *pages, block_table=table, seqused_kv=lengths, layout_kv="PA_BBND", max_seqlen_kv=64)
q, (k, v) = torch.randn(1, 1, 2, 16).bfloat16(), torch.randn(2, 1, 1000, 1, 16).bfloat16()
plan = flash_attn_metadata(
    2, 1, 16, batch_size=1, max_seqlen_q=1, max_seqlen_kv=1000, num_aic=3, num_aiv=6, block_kv=64
)
from fa_triton.attention.metadata import read_metadata
assert read_metadata(plan).header.is_fd
compare(q, k, v, metadata=plan)
"""
INTEGERS = """
q = torch.randn(2, 4, 1, 16).bfloat16()
k, v = (32 * torch.randn(2, 2, 2, 50, 16)).clamp(-127, 127).to(torch.int8)
heads = {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25, "input_layout": "BNSD"}
for scale, mode in (
    (torch.rand(2, 2, 1, 16).bfloat16() / 64, None),
    (torch.rand(2, 2, 50) / 64, "per_token"),
):
    options = {**heads, "antiquant_scale": scale, "antiquant_mode": mode}
    out = incre_flash_attention(q, k, v, **options)
    exact, _ = incre_flash_attention_reference(q, k, v, **options)
    torch.testing.assert_close(out.float(), exact.float(), rtol=1e-2, atol=1e-2)
"""


@pytest.mark.parametrize(
    "code", [MASKS, PLANS, INTEGERS], ids=["masks", "pages_and_splits", "integers"]
)
def test_the_interpreter_runs_the_same_kernels(repo_root: Path, code: str) -> None:
    environment = os.environ | {CPU_MODE_VARIABLE: "interpreter", "PYTHONPATH": str(repo_root)}
    process = subprocess.run(
        [sys.executable, "-c", COMMON + code + 'print("done")'],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert process.stdout == "done\n", process.stderr
