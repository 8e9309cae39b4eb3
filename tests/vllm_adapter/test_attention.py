"""Layers over planned batches, natively, against float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fa_triton.vllm.attention import LayerForm, attend_batch, window_left
from fa_triton.vllm.batch import plan_of
from tests.vllm_adapter.batches import attend_in_float64, make_step

pytestmark = pytest.mark.slow

DECODE = [(1, 5), (1, 33), (1, 64), (1, 100)]
PREFILL = [(20, 20), (33, 33), (7, 7)]
CHUNKS = [(16, 80), (16, 16), (9, 41)]
MIXED = [(1, 5), (1, 90), (20, 50), (7, 7)]
SPECULATIVE = [(3, 60), (3, 17), (3, 3)]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def layer_of(step, **options):
    values = {
        "num_heads_q": step.q.shape[1],
        "num_heads_kv": step.cache.shape[1],
        "head_dim": step.head_dim,
        "softmax_scale": step.head_dim**-0.5,
    }
    return LayerForm(**(values | options))


def run(step, layer, batch=None, *, is_causal=True, **tensors):
    """Attend, compare with float64, and return the result."""
    batch = batch or step.batch(layer, is_causal=is_causal)
    columns = step.cache.shape[3] - step.head_dim
    out = torch.full((*step.q.shape[:2], columns), torch.nan, dtype=step.q.dtype)
    lse = torch.full(step.q.shape[1::-1], torch.nan)
    attend_batch(layer, batch, step.q, step.pages, out, lse=lse, **tensors)
    expected, sums = attend_in_float64(step, layer, is_causal=is_causal, **tensors)
    tokens = step.num_tokens
    bound = TOLERANCE[step.q.dtype]
    torch.testing.assert_close(out[:tokens].double(), expected, atol=bound, rtol=bound)
    torch.testing.assert_close(lse[:, :tokens].double(), sums, atol=1e-4, rtol=1e-4)
    assert out[tokens:].isnan().all()
    assert lse[:, tokens:].isnan().all()
    return out


@pytest.mark.parametrize("lengths", [DECODE, PREFILL, CHUNKS, MIXED, SPECULATIVE])
def test_kinds_of_batches(lengths, nan_filled_memory):
    step = make_step(lengths, padding=5)
    run(step, layer_of(step))


@pytest.mark.parametrize("page", [16, 48, 128, 1024])
def test_block_sizes(page):
    step = make_step(MIXED, page=page)
    run(step, layer_of(step))


@pytest.mark.parametrize("head_dim", [64, 80, 128, 192, 256])
def test_head_sizes(head_dim):
    step = make_step([(1, 40), (9, 20)], head_dim=head_dim)
    run(step, layer_of(step))


def test_head_size_of_v():
    step = make_step([(1, 40), (9, 20)], head_dim=96, head_dim_v=64)
    run(step, layer_of(step))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_dtypes(dtype):
    step = make_step(MIXED, dtype=dtype)
    run(step, layer_of(step))


@pytest.mark.parametrize("heads", [(4, 4), (9, 3), (8, 1)])
def test_groups(heads):
    step = make_step(MIXED, heads=heads)
    run(step, layer_of(step))


@pytest.mark.parametrize("lengths", [DECODE, MIXED, CHUNKS])
def test_window_counts_the_own_key(lengths):
    step = make_step(lengths)
    run(step, layer_of(step, win_left=window_left(8)))


@pytest.mark.parametrize("sliding_window", [None, -1, 0])
def test_no_window(sliding_window):
    assert window_left(sliding_window) == -1


def test_soft_cap_slopes_and_sinks_together():
    step = make_step(MIXED)
    layer = layer_of(step, softcap=2.0, win_left=30)
    run(step, layer, sinks=torch.tensor([0.5, -1.0, 2.0, 0.0]))
    run(step, layer, alibi_slopes=torch.tensor([0.1, 0.2, 0.4, 0.8]))


def test_without_a_causal_mask():
    step = make_step(MIXED)
    run(step, layer_of(step), is_causal=False)


def test_window_without_a_causal_mask_is_refused():
    step = make_step(MIXED)
    with pytest.raises(NotImplementedError, match="without a causal mask"):
        run(step, layer_of(step, win_left=3), is_causal=False)


def test_cache_with_other_strides():
    step = make_step(MIXED, head_major=False)
    run(step, layer_of(step))


def test_short_queries_are_planned_apart():
    step = make_step(MIXED)
    layer = layer_of(step)
    batch = step.batch(layer)
    assert [(p.first_token, p.num_tokens) for p in batch.parts] == [(0, 2), (2, 27)]
    assert batch.parts[1].query_start_loc.tolist() == [0, 20, 27]


def test_short_and_long_queries_in_any_order():
    step = make_step([(20, 50), (1, 5), (1, 9), (7, 7), (0, 3)])
    layer = layer_of(step)
    parts = step.batch(layer).parts
    assert [(p.first_token, p.num_tokens) for p in parts] == [(0, 20), (20, 2), (22, 7)]
    run(step, layer)


def test_queries_that_alternate_often_share_the_last_plan():
    step = make_step([(20, 50), (1, 5), (7, 7), (1, 90), (9, 9), (1, 3)])
    layer = layer_of(step, win_left=20)
    parts = step.batch(layer).parts
    assert [p.num_tokens for p in parts] == [20, 1, 7, 11]
    run(step, layer)


def test_speculative_queries_count_as_short():
    step = make_step([*SPECULATIVE, (20, 50)])
    layer = layer_of(step)
    batch = step.batch(layer, longest_short=3)
    assert [p.num_tokens for p in batch.parts] == [9, 20]
    run(step, layer, batch)


def test_bounds_instead_of_lengths():
    step = make_step(MIXED)
    layer = layer_of(step)
    bounds = step.seq_lens + 13
    run(step, layer, step.batch(layer, host_seq_lens=bounds, are_bounds=True))


def test_layers_share_the_plan():
    step = make_step(DECODE)
    layer = layer_of(step)
    batch = step.batch(layer)
    form = layer.plan_form(step.cache.shape[2], step.q.dtype)
    plan = plan_of(batch.parts[0], form)
    other = layer_of(step, softcap=3.0)
    for one in (layer, layer, other):
        run(step, one, batch)
    assert batch.parts[0].plans == {form: plan}
    assert len(batch.parts[0].calls) == 2


def test_decode_steps_share_the_plan_until_a_sequence_has_another_block_of_keys():
    step = make_step([(1, 5), (1, 126), (1, 200)])
    layer = layer_of(step)
    form = layer.plan_form(step.cache.shape[2], step.q.dtype)
    plans = []
    for keys in (0, 1, 2, 3):
        grown = step.seq_lens + keys
        batch = step.batch(layer, seq_lens=torch.from_numpy(grown), host_seq_lens=grown)
        plans.append(plan_of(batch.parts[0], form))
        if not keys:
            run(step, layer, batch)
    assert plans[0] is plans[1] is plans[2]
    assert plans[3] is not plans[2]


def test_layer_that_the_builder_did_not_know():
    step = make_step(DECODE)
    batch = step.batch(layer_of(step), forms=[])
    run(step, layer_of(step), batch)
    run(step, layer_of(step, win_left=4), batch)


def test_sequences_without_queries():
    step = make_step([(1, 20), (0, 30), (6, 9)])
    run(step, layer_of(step))


@pytest.mark.parametrize("lengths", [[(0, 30), (20, 50)], [(0, 30), (0, 7)]])
def test_part_without_queries_is_left_out(lengths):
    step = make_step(lengths, padding=3)
    layer = layer_of(step)
    batch = step.batch(layer)
    assert [part.num_tokens for part in batch.parts] == [n for n, _ in lengths if n]
    if batch.parts:
        run(step, layer, batch)
        return
    out = torch.full_like(step.q, torch.nan)
    attend_batch(layer, batch, step.q, step.pages, out)
    assert out.isnan().all()


def test_padded_sequences_of_a_graph():
    step = make_step([(1, 20), (1, 30)], padding=2)
    layer = layer_of(step)
    starts = np.array([0, 1, 2, 2, 2], dtype=np.int32)
    lens = np.array([20, 30, 0, 0], dtype=np.int32)
    table = torch.zeros(4, step.block_table.shape[1], dtype=torch.int32)
    table[:2] = step.block_table
    batch = step.batch(
        layer,
        query_start_loc=torch.from_numpy(starts),
        seq_lens=torch.from_numpy(lens),
        block_table=table,
        host_query_start_loc=starts,
        host_seq_lens=lens,
    )
    run(step, layer, batch)


def test_replay_with_lengths_that_changed_in_place():
    step = make_step([(1, 90), (1, 70)])
    layer = layer_of(step)
    lens = torch.tensor([200, 200], dtype=torch.int32)
    batch = step.batch(layer, seq_lens=lens, host_seq_lens=np.array([200, 200]), are_bounds=True)
    lens.copy_(torch.from_numpy(step.seq_lens))
    run(step, layer, batch)


def test_batch_invariance():
    step = make_step(DECODE)
    layer = layer_of(step, batch_invariant=True)
    together = run(step, layer)
    alone = make_step(DECODE)
    alone.query_start_loc = np.array([0, 1], dtype=np.int32)
    alone.seq_lens, alone.block_table = step.seq_lens[3:], step.block_table[3:]
    alone.q = step.q[3:]
    assert torch.equal(run(alone, layer)[0], together[3])


def test_bad_tensors_are_refused_before_a_launch():
    step = make_step(DECODE)
    layer = layer_of(step)
    batch = step.batch(layer)
    with pytest.raises(TypeError, match="dtype"):
        attend_batch(layer, batch, step.q.half(), step.pages, torch.empty_like(step.q))


@pytest.mark.parametrize("mode", ["reference"])
def test_cpu_modes(mode, monkeypatch):
    monkeypatch.setenv("FA_TRITON_CPU", mode)
    step = make_step(MIXED)
    run(step, layer_of(step, softcap=2.0))
