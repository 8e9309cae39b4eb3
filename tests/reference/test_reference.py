"""The float64 reference against attention by the letter, and against torch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton import reference
from fa_triton.reference import flash_attn_eager, flash_attn_emulation, flash_attn_reference
from tests.reference.by_the_letter import attend_row


@dataclass(frozen=True)
class Batch:
    """A batch as a list of sequences ``[s, N, D]``, which every layout can hold."""

    q: list[torch.Tensor]
    k: list[torch.Tensor]
    v: list[torch.Tensor]

    @property
    def heads(self) -> tuple[int, int]:
        return self.q[0].shape[1], self.k[0].shape[1]


def make_batch(
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    head_dim: int = 8,
    head_dim_v: int = 8,
    seed: int = 0,
) -> Batch:
    generator = torch.Generator().manual_seed(seed)

    def random(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    return Batch(
        q=[random(q_len, heads[0], head_dim) for q_len, _ in lens],
        k=[random(kv_len, heads[1], head_dim) for _, kv_len in lens],
        v=[random(kv_len, heads[1], head_dim_v) for _, kv_len in lens],
    )


def pad(sequences: list[torch.Tensor]) -> torch.Tensor:
    """Stack ``[s, N, D]`` into BSND, with NaN behind the last token and one token of room."""
    longest = max(len(sequence) for sequence in sequences) + 1
    shape = (len(sequences), longest, *sequences[0].shape[1:])
    padded = torch.full(shape, torch.nan)
    for b, sequence in enumerate(sequences):
        padded[b, : len(sequence)] = sequence
    return padded


def ints(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def starts(sequences: list[torch.Tensor]) -> torch.Tensor:
    return ints(np.cumsum([0, *map(len, sequences)]).tolist())


def attend_in(
    layout: str, batch: Batch, **options: Any
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Attend in one layout; results per sequence ``[s, Nq, Dv]`` and ``[Nq, s]``."""
    options |= {"layout_q": layout, "layout_kv": layout, "layout_out": layout}
    options |= {"out_dtype": torch.float64, "return_softmax_lse": True}
    if layout == "TND":
        extra = torch.full((1, 1, 1), torch.nan)
        q, k, v = (
            torch.cat([*side, extra.expand(1, *side[0].shape[1:])])
            for side in (batch.q, batch.k, batch.v)
        )
        cu_q, cu_kv = starts(batch.q), starts(batch.k)
        out, lse = flash_attn_reference(q, k, v, cu_seqlens_q=cu_q, cu_seqlens_kv=cu_kv, **options)
        assert (out[-1] == 0).all()
        assert (lse[:, -1] == torch.inf).all()
        sizes = [len(sequence) for sequence in batch.q]
        return list(out[:-1].split(sizes)), list(lse[:, :-1].split(sizes, 1))
    q, k, v = pad(batch.q), pad(batch.k), pad(batch.v)
    if layout == "BNSD":
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
    out, lse = flash_attn_reference(
        q,
        k,
        v,
        seqused_q=ints([len(x) for x in batch.q]),
        seqused_kv=ints([len(x) for x in batch.k]),
        **options,
    )
    if layout == "BNSD":
        out = out.transpose(1, 2)
    for b, sequence in enumerate(batch.q):
        assert (out[b, len(sequence) :] == 0).all()
        assert (lse[b, :, len(sequence) :] == torch.inf).all()
    return (
        [out[b, : len(sequence)] for b, sequence in enumerate(batch.q)],
        [lse[b, :, : len(sequence)] for b, sequence in enumerate(batch.q)],
    )


def assert_by_the_letter(
    batch: Batch,
    outs: list[torch.Tensor],
    lses: list[torch.Tensor],
    *,
    window: tuple[int, int] = (-1, -1),
    sinks: torch.Tensor | None = None,
    slopes: torch.Tensor | None = None,
    **options: Any,
) -> None:
    num_heads_q, num_heads_kv = batch.heads
    for q, k, v, out, lse in zip(batch.q, batch.k, batch.v, outs, lses, strict=True):
        for head in range(num_heads_q):
            head_kv = head // (num_heads_q // num_heads_kv)
            for i in range(len(q)):
                row, row_lse = attend_row(
                    q[i, head].numpy(),
                    k[:, head_kv].numpy(),
                    v[:, head_kv].numpy(),
                    position=i + len(k) - len(q),
                    scale=0.3,
                    window=window,
                    sink=None if sinks is None else float(sinks[head]),
                    slope=0.0 if slopes is None else float(slopes[head]),
                    **options,
                )
                np.testing.assert_allclose(out[i, head].numpy(), row, atol=1e-12)
                np.testing.assert_allclose(lse[head, i].item(), row_lse, atol=1e-12)


MASKS = [(0, -1, -1), (3, -1, -1), (4, 2, 0), (4, 0, 0), (4, -1, 1), (4, 3, -1), (4, 1, 2)]


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(["BSND", "BNSD", "TND"]),
    lens=st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), min_size=1, max_size=3),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1), (2, 2)]),
    mask=st.sampled_from(MASKS),
    with_sinks=st.booleans(),
    seed=st.integers(0, 2**16),
)
def test_reference_by_the_letter(
    layout: str,
    lens: list[tuple[int, int]],
    heads: tuple[int, int],
    mask: tuple[int, int, int],
    with_sinks: bool,
    seed: int,
) -> None:
    batch = make_batch(lens, heads, seed=seed)
    mode, left, right = mask
    sinks = torch.linspace(-2, 2, heads[0]) if with_sinks else None
    outs, lses = attend_in(
        layout,
        batch,
        softmax_scale=0.3,
        mask_mode=mode,
        win_left=left,
        win_right=right,
        sinks=sinks,
    )
    window = (-1, 0) if mode == 3 else (left, right)
    assert_by_the_letter(batch, outs, lses, window=window, sinks=sinks)


@pytest.mark.parametrize("lse_includes_sink", [False, True])
def test_options_of_the_reference_by_the_letter(lse_includes_sink: bool) -> None:
    batch = make_batch([(5, 9), (4, 2), (3, 0)], (4, 2), head_dim=16, head_dim_v=24)
    slopes, sinks = torch.tensor([0.5, 0.25, 0.125, 0.0]), torch.tensor([0.0, 3.0, -1.0, 40.0])
    outs, lses = attend_in(
        "BSND",
        batch,
        softmax_scale=0.3,
        mask_mode=3,
        softcap=0.7,
        alibi_slopes=slopes,
        sinks=sinks,
        lse_includes_sink=lse_includes_sink,
    )
    assert_by_the_letter(
        batch,
        outs,
        lses,
        window=(-1, 0),
        sinks=sinks,
        slopes=slopes,
        softcap=0.7,
        lse_includes_sink=lse_includes_sink,
    )


def test_softcap_is_not_ignored() -> None:
    q = k = torch.full((1, 1, 1, 64), 1.25)
    _, lse = flash_attn_reference(q, k, k, softcap=50.0, return_softmax_lse=True)
    assert lse.item() == pytest.approx(50 * np.tanh(100 / 50))


def scatter_into_pages(
    sequences: list[torch.Tensor], page_size: int, seed: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Pages ``[P, page, N, D]`` in random order, NaN where unwritten, and their block table."""
    counts = [-(-len(sequence) // page_size) for sequence in sequences]
    order = torch.randperm(sum(counts) + 2, generator=torch.Generator().manual_seed(seed))
    pages = torch.full((sum(counts) + 2, page_size, *sequences[0].shape[1:]), torch.nan)
    # Entries past the last used page are rubbish that nobody may follow.
    table = torch.full((len(sequences), max(counts) + 2), 10**9, dtype=torch.int32)
    table[:, -1] = -1
    taken = 0
    for b, sequence in enumerate(sequences):
        for i in range(counts[b]):
            page = int(order[taken])
            part = sequence[i * page_size : (i + 1) * page_size]
            pages[page, : len(part)] = part
            table[b, i] = page
            taken += 1
    return pages, table


@pytest.mark.parametrize("layout_kv", ["PA_BBND", "PA_BNBD", "PA_NZ"])
def test_pages_hold_the_same_keys(layout_kv: str) -> None:
    batch = make_batch([(3, 50), (7, 16), (1, 0), (4, 33)], (4, 2), head_dim=32, head_dim_v=48)
    wanted, wanted_lse = attend_in("TND", batch, softmax_scale=0.3, mask_mode=3)
    k, table = scatter_into_pages(batch.k, 16, seed=1)
    v, _ = scatter_into_pages(batch.v, 16, seed=1)
    if layout_kv != "PA_BBND":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    if layout_kv == "PA_NZ":
        k, v = (x.unflatten(3, (-1, 16)).permute(0, 1, 3, 2, 4).contiguous() for x in (k, v))
    options: dict[str, Any] = {
        "block_table": table,
        "seqused_kv": ints([len(x) for x in batch.k]),
        "cu_seqlens_q": starts(batch.q),
        "layout_q": "TND",
        "layout_kv": layout_kv,
        "layout_out": "TND",
        "softmax_scale": 0.3,
        "mask_mode": 3,
        "return_softmax_lse": True,
    }
    out, lse = flash_attn_reference(torch.cat(batch.q), k, v, out_dtype=torch.float64, **options)
    torch.testing.assert_close(out, torch.cat(wanted))
    torch.testing.assert_close(lse, torch.cat(wanted_lse, 1))
    table[1, 0] = len(k)
    with pytest.raises(ValueError, match=r"`block_table\[1, 0\]` must lie between 0 and"):
        flash_attn_reference(torch.cat(batch.q), k, v, **options)


@pytest.mark.parametrize("causal", [False, True])
def test_reference_agrees_with_torch(causal: bool) -> None:
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(2, 6, 70, 64, generator=generator, dtype=torch.float64)
    k, v = torch.randn(2, 2, 2, 70, 64, generator=generator, dtype=torch.float64)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=causal, scale=0.125, enable_gqa=True
    )
    # The contract has no float64 inputs: compare what their float32 roundings give.
    options: dict[str, Any] = {
        "mask_mode": 3 if causal else 0,
        "softmax_scale": 0.125,
        "layout_q": "BNSD",
        "layout_kv": "BNSD",
        "layout_out": "BNSD",
    }
    out, _ = flash_attn_reference(q.float(), k.float(), v.float(), **options)
    torch.testing.assert_close(out, wanted.float(), atol=1e-6, rtol=1e-5)


def test_chunks_of_rows_do_not_show(monkeypatch: pytest.MonkeyPatch) -> None:
    batch = make_batch([(40, 50), (3, 60)], (4, 2))
    whole, whole_lse = attend_in("BSND", batch, mask_mode=4, win_left=9, win_right=3)
    monkeypatch.setattr(reference, "CHUNK_BYTES", 7 * 4 * 50 * 8)
    parts, parts_lse = attend_in("BSND", batch, mask_mode=4, win_left=9, win_right=3)
    torch.testing.assert_close(parts, whole)
    torch.testing.assert_close(parts_lse, whole_lse)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32], ids=str)
def test_results_have_the_dtypes_of_the_contract(dtype: torch.dtype) -> None:
    q = torch.ones(1, 3, 2, 64, dtype=dtype)
    for attend in (flash_attn_reference, flash_attn_emulation, flash_attn_eager):
        out, lse = attend(q, q, q, return_softmax_lse=True)
        assert (out.dtype, lse.dtype) == (dtype, torch.float32)
        out, lse = attend(q, q, q)
        assert out.dtype == dtype
        assert torch.equal(lse, torch.zeros(1))
    out, lse = flash_attn_reference(q, q, q, out_dtype=torch.float64, return_softmax_lse=True)
    assert (out.dtype, lse.dtype) == (torch.float64, torch.float64)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_every_rounding_costs(dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(5)
    q, k, v = torch.randn(3, 1, 200, 4, 64, generator=generator).to(dtype)
    options: dict[str, Any] = {"mask_mode": 3, "softmax_scale": 0.125}
    exact, _ = flash_attn_reference(q, k, v, out_dtype=torch.float64, **options)

    def rms(out: torch.Tensor) -> float:
        return (out.double() - exact).square().mean().sqrt().item()

    rounded_once = rms(exact.to(dtype))
    emulated = rms(flash_attn_emulation(q, k, v, **options)[0])
    eager = rms(flash_attn_eager(q, k, v, **options)[0])
    assert rounded_once < emulated < eager


def test_values_of_lengths_are_checked() -> None:
    q = torch.ones(2, 3, 2, 64)
    with pytest.raises(ValueError, match=r"`seqused_kv\[1\]` must lie between 0 and 3"):
        flash_attn_reference(q, q, q, seqused_kv=ints([3, 4]))
