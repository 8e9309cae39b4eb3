"""The largest sizes that the operator takes, each against float64."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn_metadata, incre_flash_attention
from fa_triton.attention.plans import plan_call
from fa_triton.incremental_attention import calls
from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.batches import IncreBatch

pytestmark = pytest.mark.usefixtures("nan_filled_memory")

LSE = {"return_softmax_lse": True}
BATCHES = {
    "256 heads": IncreBatch((40, 7), heads=(256, 256)),
    "256 heads of the query": IncreBatch((40, 7), heads=(256, 4), layout="BNSD", mask="head"),
    "group of 64 in int8": IncreBatch((40, 70), heads=(64, 1), head_dim=64, quant="per_channel"),
    "group of 64, 16 tokens": IncreBatch(
        (40, 17), tokens=16, heads=(64, 1), layout="BSND", mask="head tree", bias="tokens"
    ),
    "16 tokens of few keys": IncreBatch((3, 0, 16), tokens=16, heads=(6, 2)),
    "D 512": IncreBatch((140, 7), heads=(8, 2), head_dim=512, mask="2", bias="batch"),
    "D 512 in int8 pages": IncreBatch(
        (140, 7),
        heads=(8, 2),
        head_dim=512,
        cache="PA_BBND",
        page_size=32,
        quant="per_token",
        has_offset=True,
    ),
    "D 512 in fractals": IncreBatch((140, 7), heads=(2, 1), head_dim=512, cache="PA_NZ"),
    "D 272": IncreBatch((40, 7), heads=(2, 1), head_dim=272, layout="BNSD"),
    "D 400 in int8": IncreBatch(
        (40, 7), heads=(2, 1), head_dim=400, quant="per_channel", has_offset=True
    ),
    "D 496, 16 tokens": IncreBatch((40, 17), tokens=16, heads=(4, 2), head_dim=496),
    "pages of 1024": IncreBatch((1025, 3), heads=(4, 2), cache="PA_BNBD", page_size=1024),
    "int8 pages of 1024": IncreBatch(
        (1500,), cache="PA_BBND", page_size=1024, quant="per_token_head", has_offset=True
    ),
    "long sequence": IncreBatch((70_000, 3), heads=(4, 1), dtype=torch.bfloat16, lengths="device"),
}


@pytest.mark.slow
def test_every_multiple_of_16_is_a_head_dim() -> None:
    # one per number of 16s; the largest ones are below
    for head_dim in range(16, 257, 16):
        call = IncreBatch((40, 7), heads=(2, 1), head_dim=head_dim).call() | LSE
        assert_accurate(*incre_flash_attention(**call), call)


@pytest.mark.slow
@pytest.mark.parametrize("name", BATCHES)
def test_largest_sizes(name: str) -> None:
    call = BATCHES[name].call() | LSE
    assert_accurate(*incre_flash_attention(**call), call)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["host", "device"])
def test_65536_sequences(lengths: str) -> None:
    """The launch and the plan follow the tasks, not the batch."""
    batch_size, heads, dim, room = 65536, 2, 16, 3
    generator = torch.Generator().manual_seed(0)
    shapes = ((1, heads, dim), (room, 1, dim), (room, 1, dim))
    query, key, value = (
        torch.randn(batch_size, *shape, generator=generator).half() for shape in shapes
    )
    used = torch.randint(0, room + 1, (batch_size,), generator=generator)
    out = incre_flash_attention(
        query,
        key,
        value,
        num_heads=heads,
        num_key_value_heads=1,
        input_layout="BSND",
        scale_value=0.25,
        actual_seq_lengths=used.int() if lengths == "device" else used.tolist(),
    )
    logits = 0.25 * torch.einsum("bnd,bsd->bns", query[:, 0].double(), key[:, :, 0].double())
    hidden = torch.arange(room) >= used[:, None]
    weights = logits.masked_fill(hidden[:, None], -torch.inf).softmax(-1).nan_to_num(0)
    wanted = torch.einsum("bns,bsd->bnd", weights, value[:, :, 0].double())
    assert isinstance(out, torch.Tensor)
    torch.testing.assert_close(out[:, 0].double(), wanted, atol=2e-3, rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize("lengths", ["host", "device"])
def test_a_plan_of_many_sequences_is_small(monkeypatch: pytest.MonkeyPatch, lengths: str) -> None:
    words = {}

    def planned(*args, **options):
        table = plan_call(*args, **options)
        words[batch_size] = table.table.numel()
        return table

    monkeypatch.setattr(calls, "plan_call", planned)
    for batch_size in (1024, 32768):
        batch = IncreBatch((5,) * batch_size, lengths=lengths)
        incre_flash_attention(**batch.call())
    assert words[32768] <= 2 * words[1024]
    table = flash_attn_metadata(2, 1, 16, batch_size=65535, max_seqlen_q=1, max_seqlen_kv=5)
    assert table.numel() < 65535
