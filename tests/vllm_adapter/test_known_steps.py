"""Steps that take plan and calls of an earlier step: only those that equal it do."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch

from fa_triton.vllm import batch as batches
from fa_triton.vllm.attention import LayerForm, attend_batch
from fa_triton.vllm.batch import KnownSteps, plan_of
from tests.vllm_adapter.batches import attend_in_float64, make_step

pytestmark = pytest.mark.slow

DECODE = [(1, 5), (1, 33), (1, 64), (1, 100)]
LAYER = LayerForm(num_heads_q=4, num_heads_kv=2, head_dim=64, softmax_scale=0.125)


def run(step, batch, layer=LAYER, is_causal=True):
    out = torch.full_like(step.q, torch.nan)
    attend_batch(layer, batch, step.q, step.pages, out)
    expected, _ = attend_in_float64(step, layer, is_causal=is_causal)
    torch.testing.assert_close(out.double(), expected, atol=2e-6, rtol=2e-6)


def test_equal_steps_share_plan_and_calls():
    known = KnownSteps()
    seen = []
    for seed, more in ((0, 0), (1, 1), (2, 20)):
        step = make_step([(1, keys + more) for _, keys in DECODE], seed=seed)
        step.block_table = torch.cat([step.block_table, step.block_table], 1)[:, :8]
        part = step.batch(LAYER, known=known).parts[0]
        assert part.block_table is step.block_table
        run(step, step.batch(LAYER, known=known))
        seen.append((part.plans, part.calls))
    assert all(plans is seen[0][0] and calls is seen[0][1] for plans, calls in seen)
    assert len(known) == 1


def wide_table(step):
    return step.block_table.repeat_interleave(2, 0)[::2]


NOT_DENSE = "must be contiguous"
THE_STEP = make_step(DECODE)
LONGER_STEP = make_step([*DECODE[:3], (1, 129)])
OTHERS = {
    "queries of two tokens": (make_step([(1, 5), (2, 33), (1, 64), (1, 100)]), {}),
    "fewer sequences": (make_step(DECODE[:3]), {}),
    "another block of keys": (LONGER_STEP, {"block_table": LONGER_STEP.block_table[:, :6].clone()}),
    "no causal mask": (THE_STEP, {"is_causal": False}),
    "bounds": (THE_STEP, {"are_bounds": True}),
    "longer short queries": (THE_STEP, {"longest_short": 3}),
    "table of another stride": (THE_STEP, {"block_table": wide_table(THE_STEP)}),
    "table of another width": (THE_STEP, {"block_table": THE_STEP.block_table[:, :4].clone()}),
    "lengths apart": (
        THE_STEP,
        {"seq_lens": torch.from_numpy(THE_STEP.seq_lens).repeat_interleave(2)[::2]},
    ),
    "starts apart": (
        THE_STEP,
        {"query_start_loc": torch.from_numpy(THE_STEP.query_start_loc).repeat_interleave(2)[::2]},
    ),
}


@pytest.mark.parametrize("name", OTHERS)
def test_other_step_is_described_anew(name):
    known = KnownSteps()
    first = THE_STEP.batch(LAYER, known=known, longest_short=2)
    run(THE_STEP, first)
    step, options = OTHERS[name]
    batch = step.batch(LAYER, **({"longest_short": 2} | options), known=known)
    part = batch.parts[0]
    assert part.calls is not first.parts[0].calls
    assert part.plans is not first.parts[0].plans
    if name not in ("lengths apart", "starts apart"):
        run(step, batch, is_causal=part.is_causal)
        return
    # refused, as they would be without the step before
    with pytest.raises(ValueError, match=NOT_DENSE):
        run(step, batch)


def test_other_threads_get_another_plan():
    known = KnownSteps()
    tables = []
    for threads in (1, 2, 1):
        torch.set_num_threads(threads)
        batch = THE_STEP.batch(LAYER, known=known)
        tables.append(plan_of(batch.parts[0], LAYER.plan_form(32, torch.float32)).table)
        run(THE_STEP, batch)
    assert tables[0] is tables[2] is not tables[1]


def test_steps_with_long_queries_are_not_kept():
    known = KnownSteps()
    for lengths in ([(1, 5), (20, 50)], [(20, 50)], [(0, 30), (0, 7)], [(0, 4), (9, 9)]):
        make_step(lengths).batch(LAYER, known=known)
    assert len(known) == 0


def test_known_steps_are_bounded(monkeypatch):
    monkeypatch.setattr(batches, "_KEPT_STEPS", 3)
    known = KnownSteps()
    first = make_step([(1, 5)])
    calls = first.batch(LAYER, known=known).parts[0].calls
    for count in range(2, 7):
        make_step([(1, 5)] * count).batch(LAYER, known=known)
        # what is asked for stays
        assert first.batch(LAYER, known=known).parts[0].calls is calls
        assert len(known) <= 3


def test_plan_that_was_written_to_is_made_anew():
    known = KnownSteps()
    first = THE_STEP.batch(LAYER, known=known)
    run(THE_STEP, first)
    form = LAYER.plan_form(32, torch.float32)
    table = plan_of(first.parts[0], form).table
    table.zero_()
    again = THE_STEP.batch(LAYER, known=known)
    assert plan_of(again.parts[0], form).table is not table
    run(THE_STEP, again)


def test_values_are_checked_in_every_batch(monkeypatch):
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    known = KnownSteps()
    for _ in range(2):
        run(THE_STEP, THE_STEP.batch(LAYER, known=known))
    broken = THE_STEP.block_table.clone()
    broken[0, 0] = 99
    with pytest.raises(ValueError, match=r"`block_table\[0, 0\]` must lie"):
        run(THE_STEP, THE_STEP.batch(LAYER, known=known, block_table=broken))


def test_tensors_of_a_step_are_let_go():
    known = KnownSteps()
    step = make_step(DECODE)
    lens, table = torch.from_numpy(step.seq_lens), step.block_table.clone()
    kept = [weakref.ref(lens), weakref.ref(table)]
    batch = step.batch(LAYER, known=known, seq_lens=lens, block_table=table)
    run(step, batch)
    del lens, table, batch
    gc.collect()
    assert len(known) == 1
    assert [one() for one in kept] == [None, None]


def test_padding_is_part_of_a_step():
    known = KnownSteps()
    step = make_step([(1, 20), (1, 30)])
    run(step, step.batch(LAYER, known=known))
    padded = np.array([0, 1, 2, 2, 2], dtype=np.int32)
    lens = np.array([20, 30, 0, 0], dtype=np.int32)
    batch = step.batch(
        LAYER,
        known=known,
        query_start_loc=torch.from_numpy(padded),
        seq_lens=torch.from_numpy(lens),
        block_table=torch.cat([step.block_table, step.block_table]),
        host_query_start_loc=padded,
        host_seq_lens=lens,
    )
    assert len(known) == 2
    run(step, batch)
