"""The calls of vLLM's and vllm-ascend's KDA layers against float64."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.kda import activated_calls, ascend_calls, operands, raw_calls
from fa_triton.vllm.kda.support import reason_against
from tests.vllm_adapter.kda_calls import (
    LIMIT,
    STATE_LIMIT,
    KdaStep,
    assert_close,
    make_kda_step,
    relative_error,
)

pytestmark = pytest.mark.slow

PREFILL = [70, 1, 130]
BOUNDS = [None, -5.0]


def assert_states(got: torch.Tensor, exact: torch.Tensor) -> None:
    assert got.shape == exact.shape
    assert relative_error(got, exact) < STATE_LIMIT


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_prefill_with_raw_gates(bound, dtype, nan_filled_memory):
    step = make_kda_step(PREFILL, dtype=dtype)
    out = torch.empty_like(step.v)
    arguments = {
        "A_log": step.A_log,
        "g_bias": step.dt_bias,
        "initial_state": step.states,
        "output_final_state": True,
        "lower_bound": bound,
        "use_qk_l2norm_in_kernel": True,
        "cu_seqlens": step.starts,
    }
    rows = (step.q, step.k, step.v, step.raw_g)
    result, states = raw_calls.chunk_kda_with_raw_beta(*rows, step.raw_beta, **arguments, out=out)
    expected, final = step.answer(bound)
    assert result is out
    assert_close(step, result, expected)
    assert_states(states, final)
    # older layers apply the sigmoid themselves
    older, states = activated_calls.chunk_kda_with_activated_beta(*rows, step.beta, **arguments)
    assert_close(step, older, expected)
    assert_states(states, final)


def test_prefill_with_activated_gates():
    step = make_kda_step(PREFILL)
    result, states = activated_calls.chunk_kda(
        step.q,
        step.k,
        step.v,
        step.gate(),
        step.beta,
        initial_state=step.states,
        output_final_state=True,
        use_qk_l2norm_in_kernel=True,
        cu_seqlens=step.starts,
    )
    expected, final = step.answer()
    assert_close(step, result, expected)
    assert_states(states, final)


def decode_answer(step: KdaStep, bound: float | None) -> tuple[torch.Tensor, torch.Tensor]:
    expected, final = step.answer(bound)
    pool = step.pool.double()
    pool[step.slots.long()] = final
    return expected, pool


def assert_pool(got: torch.Tensor, exact: torch.Tensor) -> None:
    assert torch.equal(got.isnan(), exact.isnan())
    assert relative_error(got.nan_to_num(), exact.nan_to_num()) < STATE_LIMIT


@pytest.mark.parametrize("bound", BOUNDS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_decode_of_packed_rows(bound, dtype, nan_filled_memory):
    step = make_kda_step([1] * 5, dtype=dtype)
    mixed = torch.cat([x.flatten(2)[0] for x in (step.q, step.k, step.v)], -1)
    expected, pool = decode_answer(step, bound)
    result, state = raw_calls.fused_recurrent_kda_packed_decode(
        mixed, step.raw_g, step.raw_beta, step.A_log, step.dt_bias, bound, step.pool, step.slots
    )
    assert state is step.pool
    assert_close(step, result, expected)
    assert_pool(step.pool, pool)


@pytest.mark.parametrize("bound", BOUNDS)
def test_decode_with_buffers_of_a_graph(bound):
    """Slots are longer than the sequences; a sequence of slot 0 is padding."""
    step = make_kda_step([1] * 4)
    slots = torch.cat([step.slots, step.slots.new_tensor([0, -1])])
    expected, pool = decode_answer(step, bound)
    out = torch.full_like(step.v, torch.nan)
    result, _ = raw_calls.fused_recurrent_kda_with_raw_gate(
        step.q, step.k, step.v, step.raw_g, step.raw_beta, step.A_log, step.dt_bias, bound,
        step.pool, step.starts, slots, out=out,
    )  # fmt: skip
    assert result is out
    assert_close(step, result, expected)
    assert_pool(step.pool, pool)


def test_decode_of_padding():
    step = make_kda_step([1, 1])
    before = step.pool.clone()
    result, _ = raw_calls.fused_recurrent_kda_packed_decode(
        torch.cat([x.flatten(2)[0] for x in (step.q, step.k, step.v)], -1),
        step.raw_g, step.raw_beta, step.A_log, step.dt_bias, None, step.pool,
        step.slots.new_tensor([0, -1]),
    )  # fmt: skip
    assert not result.any()
    assert torch.equal(before.nan_to_num(), step.pool.nan_to_num())


def test_speculative_decode():
    """A state per token: the next step starts from that of the last accepted one."""
    step = make_kda_step([3, 3])
    pool = torch.zeros(8, *step.pool.shape[1:])
    slots = torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32)
    accepted = torch.tensor([2, 1], dtype=torch.int32)
    pool[2], pool[4] = step.states
    expected, final = step.answer()
    result, _ = raw_calls.fused_recurrent_kda_with_raw_gate(
        step.q, step.k, step.v, step.raw_g, step.raw_beta, step.A_log, step.dt_bias, None,
        pool, step.starts, slots, num_accepted_tokens=accepted,
    )  # fmt: skip
    assert_close(step, result, expected)
    assert_states(pool[[3, 6]], final)


def test_decode_with_activated_gates():
    """What layers up to vLLM 0.26 call: gate in plain torch, then the recurrence."""
    step = make_kda_step([1] * 3)
    expected, pool = decode_answer(step, None)
    gate = activated_calls.fused_kda_gate(
        step.raw_g.flatten(2)[0], step.A_log.view(1, 1, -1, 1), 64, g_bias=step.dt_bias
    )
    torch.testing.assert_close(gate, step.gate()[0], atol=1e-6, rtol=1e-5)
    result, state = activated_calls.fused_recurrent_kda_with_activated_gate(
        step.q, step.k, step.v, gate[None], step.beta, initial_state=step.pool,
        cu_seqlens=step.starts, ssm_state_indices=step.slots,
    )  # fmt: skip
    assert state is step.pool
    assert_close(step, result, expected)
    assert_pool(step.pool, pool)


def test_bounded_gate_in_plain_torch():
    step = make_kda_step([4])
    gate = activated_calls.fused_kda_gate(
        step.raw_g.flatten(2)[0], step.A_log, 64, g_bias=step.dt_bias, lower_bound=-5.0
    )
    torch.testing.assert_close(gate, step.gate(-5.0)[0], atol=1e-6, rtol=1e-5)


def test_states_of_new_sequences_are_zero():
    step = make_kda_step([4, 4, 4])
    new = torch.tensor([True, False, True])
    slots = step.slots.clone()
    # whatever lies in the slot of a new sequence
    step.pool[int(slots[1])] = torch.nan
    states = operands.gathered_states(step.pool, slots, new)
    assert torch.equal(states[::2], step.pool[slots.long()[::2]])
    assert not states[1].any()


@pytest.mark.parametrize("bound", BOUNDS)
def test_prefill_of_vllm_ascend(bound, nan_filled_memory):
    step = make_kda_step(PREFILL)
    starts = step.starts.tolist()
    indices = [
        pair for n, tokens in enumerate(PREFILL) for c in range(-(-tokens // 64)) for pair in (n, c)
    ]
    result, states = ascend_calls.run_chunk_kda(
        step.q, step.k, step.v, step.raw_g, step.beta, step.states, starts, indices,
        step.A_log.view(1, 1, -1, 1), step.dt_bias, lower_bound=bound,
    )  # fmt: skip
    expected, final = step.answer(bound)
    assert_close(step, result, expected)
    assert_states(states, final)


@pytest.mark.parametrize("is_preprocessed", [True, False])
@pytest.mark.parametrize("bound", BOUNDS)
def test_decode_of_vllm_ascend(bound, is_preprocessed):
    step = make_kda_step([1] * 4)
    expected, pool = decode_answer(step, bound)
    result = ascend_calls.run_recurrent_kda(
        step.q, step.k, step.v, step.raw_g, step.beta if is_preprocessed else step.raw_beta,
        step.pool, step.starts, torch.cat([step.slots, step.slots]), step.A_log, step.dt_bias,
        lower_bound=bound, beta_is_preprocessed=is_preprocessed,
    )  # fmt: skip
    assert_close(step, result, expected)
    assert_pool(step.pool, pool)


def test_chunks_then_tokens_are_the_whole_sequence():
    """Prefill in two parts, then decode: the state is handed from call to call."""
    step = make_kda_step([160])
    step.pool[:] = 0
    expected, _ = step.answer()
    pool, slot = step.pool, step.slots
    parts = []
    for first, last in ((0, 64), (64, 150)):
        rows = [x[:, first:last] for x in (step.q, step.k, step.v, step.raw_g, step.raw_beta)]
        starts = torch.tensor([0, last - first], dtype=torch.int32)
        state = operands.gathered_states(pool, slot, torch.tensor([first > 0]))
        out, final = raw_calls.chunk_kda_with_raw_beta(
            *rows, step.A_log, step.dt_bias, initial_state=state, output_final_state=True,
            use_qk_l2norm_in_kernel=True, cu_seqlens=starts,
        )  # fmt: skip
        pool[slot.long()] = final
        parts.append(out)
    for t in range(150, 160):
        mixed = torch.cat([x[0, t : t + 1].flatten(1) for x in (step.q, step.k, step.v)], -1)
        out, _ = raw_calls.fused_recurrent_kda_packed_decode(
            mixed, step.raw_g[:, t : t + 1], step.raw_beta[:, t : t + 1], step.A_log,
            step.dt_bias, None, pool, slot,
        )  # fmt: skip
        parts.append(out)
    assert relative_error(torch.cat(parts, 1), expected) < LIMIT[torch.bfloat16]


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        ((torch.float32, 2, 2, 64, 64, None), "float16 or bfloat16, got torch.float32"),
        ((torch.bfloat16, 2, 2, 40, 64, None), "key head dimension"),
        ((torch.bfloat16, 2, 2, 64, 512, None), "value head dimension"),
        ((torch.bfloat16, 2, 3, 64, 64, None), "multiple of the 2 heads"),
        ((torch.bfloat16, 2, 130, 64, 64, None), "at most 128"),
        ((torch.bfloat16, 2, 2, 64, 64, -5.5), "least decay must lie in [-5, 0), got -5.5"),
        ((torch.bfloat16, 2, 2, 64, 64, 0.0), "least decay"),
        ((torch.bfloat16, 2, 2, 64, 64, float("nan")), "least decay"),
        ((torch.float16, 2, 4, 128, 128, None), None),
        ((torch.float16, 2, 4, 128, 128, -5.0), None),
    ],
)
def test_forms_that_stay_with_vllm(form, reason):
    said = reason_against(*form)
    assert said is None if reason is None else reason in said
