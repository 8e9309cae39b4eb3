"""Merging attention over disjoint keys is attention over all of them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fa_triton import merge_attn_states
from fa_triton.reference import flash_attn_reference

LSE = {"return_softmax_lse": True, "softmax_scale": 0.125}


def random(*shape: int, seed: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def used(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


@settings(max_examples=60, deadline=None)
@given(
    layout=st.sampled_from(["BSND", "BNSD", "TND"]),
    heads=st.sampled_from([(1, 1), (4, 2), (3, 1)]),
    q_len=st.integers(1, 6),
    cuts=st.tuples(st.integers(0, 20), st.integers(0, 20)),
    dtype=st.sampled_from([torch.float32, torch.float16, torch.bfloat16]),
    marker=st.sampled_from([torch.inf, -torch.inf]),
    seed=st.integers(0, 2**16),
)
def test_split_keys(
    layout: str,
    heads: tuple[int, int],
    q_len: int,
    cuts: tuple[int, int],
    dtype: torch.dtype,
    marker: float,
    seed: int,
) -> None:
    """Sequence b has 20 keys, of which the first ``cuts[b]`` belong to the first part."""
    q = random(2, q_len, heads[0], 64, seed=seed).to(dtype)
    k, v = (random(2, 20, heads[1], 64, seed=seed + i).to(dtype) for i in (1, 2))
    parts = []
    for shift, lengths in ((False, cuts), (True, tuple(20 - cut for cut in cuts))):
        part_k, part_v = k, v
        if shift:
            part_k = torch.stack([k[b].roll(-cuts[b], 0) for b in range(2)])
            part_v = torch.stack([v[b].roll(-cuts[b], 0) for b in range(2)])
        out, lse = flash_attn_reference(q, part_k, part_v, seqused_kv=used(*lengths), **LSE)
        empty = lse == torch.inf
        # The result beside an empty marker is never read.
        out = out.masked_fill(empty.transpose(1, 2)[..., None], torch.nan)
        parts += [out, lse.masked_fill(empty, marker)]
    wanted, wanted_lse = flash_attn_reference(q, k, v, out_dtype=torch.float64, **LSE)
    out_a, lse_a, out_b, lse_b = parts
    if layout == "BNSD":
        out_a, out_b, wanted = (x.transpose(1, 2) for x in (out_a, out_b, wanted))
    if layout == "TND":
        out_a, out_b, wanted = (x.flatten(0, 1) for x in (out_a, out_b, wanted))
        lse_a, lse_b, wanted_lse = (
            x.transpose(0, 1).flatten(1) for x in (lse_a, lse_b, wanted_lse)
        )
    out, lse = merge_attn_states(out_a, lse_a, out_b, lse_b, layout=layout)
    assert (out.dtype, lse.dtype) == (dtype, torch.float32)
    # Each part was rounded to the dtype once, and so was the merge.
    step = 2 * torch.finfo(dtype).eps
    torch.testing.assert_close(out.double(), wanted, atol=4 * step, rtol=step)
    torch.testing.assert_close(lse.double(), wanted_lse, atol=1e-5, rtol=1e-6)
    swapped, swapped_lse = merge_attn_states(out_b, lse_b, out_a, lse_a, layout=layout)
    assert torch.equal(swapped, out)
    assert torch.equal(swapped_lse, lse)


@pytest.mark.parametrize("first", [torch.inf, -torch.inf])
@pytest.mark.parametrize("second", [torch.inf, -torch.inf])
def test_two_empty_parts(first: float, second: float) -> None:
    rubbish = torch.full((3, 2, 64), torch.nan)
    out, lse = merge_attn_states(
        rubbish, torch.full((2, 3), first), rubbish, torch.full((2, 3), second)
    )
    assert torch.equal(out, torch.zeros(3, 2, 64))
    assert torch.equal(lse, torch.full((2, 3), torch.inf))


def test_an_empty_part_changes_nothing() -> None:
    out_a, lse_a = random(5, 2, 64, seed=1).half(), random(2, 5, seed=2)
    rubbish = torch.full_like(out_a, torch.nan)
    for marker in (torch.inf, -torch.inf):
        out, lse = merge_attn_states(out_a, lse_a, rubbish, torch.full_like(lse_a, marker))
        assert torch.equal(out, out_a)
        assert torch.equal(lse, lse_a)


@pytest.mark.parametrize("layout", ["TND", "BSND", "BNSD"])
def test_markers_hold_row_by_row(layout: str) -> None:
    """One row for every pair of (key seen, +inf, -inf), and rubbish beside every marker."""
    kinds = [0.5, torch.inf, -torch.inf]
    lse_a = torch.tensor([[a for a in kinds for _ in kinds]]).repeat(2, 1)
    lse_b = torch.tensor([[b for _ in kinds for b in kinds]]).repeat(2, 1)
    out_a, out_b = torch.ones(9, 2, 16), torch.full((9, 2, 16), 3.0)
    # 1 where only a saw a key, 3 where only b did, 2 where both did alike
    values = torch.tensor([2.0, 1, 1, 3, 0, 0, 3, 0, 0])
    out_a = out_a.masked_fill(lse_a[0].isinf()[:, None, None], torch.nan)
    out_b = out_b.masked_fill(lse_b[0].isinf()[:, None, None], -torch.inf)
    if layout != "TND":
        lse_a, lse_b, out_a, out_b = (x[None] for x in (lse_a, lse_b, out_a, out_b))
    if layout == "BNSD":
        out_a, out_b = out_a.transpose(1, 2), out_b.transpose(1, 2)
    out, lse = merge_attn_states(out_a, lse_a, out_b, lse_b, layout=layout)
    rows = out.flatten(0, -3) if layout != "BNSD" else out[0].transpose(0, 1)
    assert torch.equal(rows, values[:, None, None].expand(9, 2, 16))
    both = 0.5 + torch.log(torch.tensor(2.0))
    wanted = [both, 0.5, 0.5, 0.5, torch.inf, torch.inf, 0.5, torch.inf, torch.inf]
    torch.testing.assert_close(lse.flatten(0, -2)[0], torch.tensor(wanted))


def test_a_nan_stays_in_its_row() -> None:
    """A row whose log-sum-exp is NaN did see keys: the fault is handed on, to no other row."""
    out_a, lse_a = random(4, 2, 64, seed=1), random(2, 4, seed=2)
    out_b, lse_b = random(4, 2, 64, seed=3), random(2, 4, seed=4)
    clean, clean_lse = merge_attn_states(out_a, lse_a, out_b, lse_b)
    lse_a[1, 2] = torch.nan
    out_b[0, 0, 5] = torch.nan
    out, lse = merge_attn_states(out_a, lse_a, out_b, lse_b)
    assert out[2, 1].isnan().all()
    assert lse[1, 2].isnan()
    assert out[0, 0, 5].isnan()
    out[2, 1], lse[1, 2], out[0, 0, 5] = clean[2, 1], clean_lse[1, 2], clean[0, 0, 5]
    assert torch.equal(out, clean)
    assert torch.equal(lse, clean_lse)


def test_views_merge_like_copies() -> None:
    """Any strides, also those of a result that lies in a larger buffer."""
    out_a, out_b = (
        random(6, 5, 200, seed=1)[:, 1:3, 8:72],
        random(64, 2, 6, seed=2).permute(2, 1, 0),
    )
    lse_a, lse_b = random(6, 2, seed=3).T, random(4, 6, seed=4)[::2]
    out, lse = merge_attn_states(out_a, lse_a, out_b, lse_b)
    copies = (x.contiguous() for x in (out_a, lse_a, out_b, lse_b))
    wanted, wanted_lse = merge_attn_states(*copies)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


@pytest.mark.parametrize("cut", [0, 7, 20])
def test_sinks_belong_into_one_part(cut: int) -> None:
    q, sinks = random(2, 3, 4, 64, seed=1), random(4, seed=2) + 1
    k, v = (random(2, 20, 2, 64, seed=seed) for seed in (3, 4))
    counted = {**LSE, "sinks": sinks, "lse_includes_sink": True}
    first = flash_attn_reference(q, k, v, seqused_kv=used(cut, cut), **counted)
    rest = used(20 - cut, 20 - cut)
    second = flash_attn_reference(q, k.roll(-cut, 1), v.roll(-cut, 1), seqused_kv=rest, **LSE)
    out, lse = merge_attn_states(*first, *second, layout="BSND")
    wanted, wanted_lse = flash_attn_reference(q, k, v, **counted)
    torch.testing.assert_close(out, wanted, atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse, wanted_lse, atol=1e-5, rtol=1e-6)


def test_far_apart_and_huge() -> None:
    out_a, out_b = torch.ones(1, 1, 64), torch.full((1, 1, 64), 3.0)
    far = merge_attn_states(out_a, torch.tensor([[1e4]]), out_b, torch.tensor([[-1e4]]))
    assert torch.equal(far[0], out_a)
    assert far[1].item() == 1e4
    same = merge_attn_states(out_a, torch.tensor([[3e4]]), out_b, torch.tensor([[3e4]]))
    assert torch.equal(same[0], torch.full_like(out_a, 2.0))


def test_merging_is_associative() -> None:
    outs = [random(4, 2, 64, seed=i) for i in range(3)]
    lses = [random(2, 4, seed=10 + i) for i in range(3)]
    left = merge_attn_states(
        *merge_attn_states(outs[0], lses[0], outs[1], lses[1]), outs[2], lses[2]
    )
    right = merge_attn_states(
        outs[0], lses[0], *merge_attn_states(outs[1], lses[1], outs[2], lses[2])
    )
    torch.testing.assert_close(left, right)


GOOD: dict[str, Any] = {
    "out_a": torch.zeros(3, 2, 64),
    "lse_a": torch.zeros(2, 3),
    "out_b": torch.zeros(3, 2, 64),
    "lse_b": torch.zeros(2, 3),
}


@pytest.mark.parametrize(
    ("changes", "error", "says"),
    [
        ({"out_a": None}, TypeError, ("`out_a`", "torch.Tensor", "NoneType")),
        ({"lse_b": 0.0}, TypeError, ("`lse_b`", "torch.Tensor", "float")),
        ({"layout": "PA_BBND"}, ValueError, ("`layout`", "TND", "'PA_BBND'")),
        ({"layout": "BSND"}, ValueError, ("`out_a`", "4 axes", "(3, 2, 64)")),
        ({"out_a": torch.zeros(3, 2, 64).double()}, TypeError, ("`out_a`", "float32", "float64")),
        ({"out_b": torch.zeros(3, 2, 64).half()}, TypeError, ("`out_b`", "float32", "float16")),
        ({"out_b": torch.zeros(3, 2, 32)}, ValueError, ("`out_b`", "(3, 2, 64)", "(3, 2, 32)")),
        ({"lse_a": torch.zeros(3, 2)}, ValueError, ("`lse_a`", "(2, 3)", "got (3, 2)")),
        ({"lse_b": torch.zeros(1)}, ValueError, ("`lse_b`", "(2, 3)", "got (1,)")),
        ({"lse_a": torch.zeros(2, 3).half()}, TypeError, ("`lse_a`", "float32", "float16")),
        ({"out_b": torch.zeros(3, 2, 64, device="meta")}, ValueError, ("cpu", "out_a", "meta")),
        ({"lse_b": torch.zeros(2, 3, device="meta")}, ValueError, ("`lse_b`", "cpu", "meta")),
    ],
)
def test_refused(changes: dict[str, Any], error: type[Exception], says: tuple[str, ...]) -> None:
    with pytest.raises(error, match="must") as caught:
        merge_attn_states(**(GOOD | changes))
    for part in (*says, "got"):
        assert part in str(caught.value)
