"""Steps that repeat an earlier one: only addresses are exchanged, results are those of the call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import incre_flash_attention
from fa_triton.incremental_attention import calls, steps
from tests.incre_flash_attention.accuracy import assert_accurate

HEADS = {"num_heads": 8, "num_key_value_heads": 2, "scale_value": 0.125, "input_layout": "BNSD"}


@pytest.fixture
def repeats(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each call was a repetition, from no kept steps on."""
    torch.set_num_threads(1)
    steps._steps.clear()
    outcomes: list[bool] = []

    def counted(*arguments: Any) -> torch.Tensor | None:
        out = steps.repeat_step(*arguments)
        outcomes.append(out is not None)
        return out

    monkeypatch.setattr(calls, "repeat_step", counted)
    return outcomes


def attend(seed: int, **options: Any) -> None:
    """Attend with tensors of a seed and compare with float64."""
    generator = torch.Generator().manual_seed(seed)
    paged = "block_table" in options
    shape = (9, 2, 32, 64) if paged else (2, 2, 96, 64)
    is_int8 = "antiquant_scale" in options
    q = torch.randn(2, 8, 1, 64, generator=generator).bfloat16()
    k, v = (torch.randn(shape, generator=generator) for _ in range(2))
    k, v = ((32 * x).clamp(-128, 127).to(torch.int8) if is_int8 else x.bfloat16() for x in (k, v))
    options = {**HEADS, **options}
    out = incre_flash_attention(q, k, v, **options)
    assert isinstance(out, torch.Tensor)
    assert_accurate(out, None, {"query": q, "key": k, "value": v, **options})


def test_other_tensors(repeats: list[bool]) -> None:
    for seed in range(3):
        attend(seed)
    assert repeats == [False, True, True]


def test_through_the_operator_of_torch(repeats: list[bool]) -> None:
    """Which has caches in lists."""
    for seed in range(2):
        generator = torch.Generator().manual_seed(seed)
        q = torch.randn(2, 8, 1, 64, generator=generator).bfloat16()
        k, v = (torch.randn(2, 2, 96, 64, generator=generator).bfloat16() for _ in range(2))
        call = {"query": q, "key": k, "value": v, **HEADS}
        out, _ = torch.ops.fa_triton.incre_flash_attention(**{**call, "key": [k], "value": [v]})
        assert_accurate(out, None, call)
    assert repeats == [False, True]


def test_pages_are_those_of_the_call(repeats: list[bool]) -> None:
    for seed in range(3):
        table = torch.randperm(9, generator=torch.Generator().manual_seed(seed))[:6]
        table = table.to(torch.int32).view(2, 3)
        attend(seed, block_table=table, block_size=32, actual_seq_lengths=[90, 0])
    assert repeats == [False, True, True]


def test_host_lengths_are_those_of_the_call(repeats: list[bool]) -> None:
    for lengths in ([96, 5], [96, 5], [17, 96], [17, 96]):
        attend(0, actual_seq_lengths=lengths)
    assert repeats == [False, True, False, True]


@pytest.mark.parametrize("shape", [(2,), (2, 2, 1, 64)])
def test_scales_are_those_of_the_call(shape: tuple[int, ...], repeats: list[bool]) -> None:
    for seed in range(3):
        generator = torch.Generator().manual_seed(seed)
        scale = ((1 + torch.rand(shape, generator=generator)) / 64).bfloat16()
        attend(seed, antiquant_scale=scale, antiquant_offset=(8 * scale).bfloat16())
    assert repeats == [False, True, True]


def test_scales_per_token_and_an_empty_offset(repeats: list[bool]) -> None:
    for seed in range(3):
        scale = (1 + torch.rand(2, 2, 96, generator=torch.Generator().manual_seed(seed))) / 64
        attend(
            seed,
            antiquant_scale=scale,
            antiquant_mode="per_token",
            antiquant_offset=torch.empty(0),
        )
    assert repeats == [False, True, True]


def test_scales_may_be_parts_of_larger_tables(repeats: list[bool]) -> None:
    tables = (1 + torch.rand(5, 2, 2, 96, generator=torch.Generator().manual_seed(0))) / 64
    for at in range(4):
        attend(
            at,
            antiquant_scale=tables[at : at + 2, 0],
            antiquant_offset=tables[at : at + 2, 1],
            antiquant_mode="per_token",
        )
    assert repeats[-4:] == [False, True, True, True]


def test_another_alignment_is_no_repetition(repeats: list[bool]) -> None:
    """Whose loads would read other bytes than the compiled ones."""
    q = torch.randn(2, 8, 1, 64).bfloat16()
    for shift in (0, 0, 1, 0):
        k, v = (torch.randn(2 * 2 * 96 * 64 + 1).bfloat16() for _ in range(2))
        k, v = (x[shift : shift + 2 * 2 * 96 * 64].view(2, 2, 96, 64) for x in (k, v))
        out = incre_flash_attention(q, k, v, **HEADS)
        assert isinstance(out, torch.Tensor)
        assert_accurate(out, None, {"query": q, "key": k, "value": v, **HEADS})
    assert repeats == [False, True, False, False]


@pytest.mark.parametrize("at", [0, 1])
def test_a_default_device_changes_nothing(at: int, repeats: list[bool]) -> None:
    """Neither in the first call nor in its repetition."""
    generator = torch.Generator().manual_seed(at)
    q = torch.randn(2, 8, 1, 64, generator=generator).bfloat16()
    k, v = (torch.randn(2, 2, 96, 64, generator=generator).bfloat16() for _ in range(2))
    call = {"query": q, "key": k, "value": v, **HEADS, "actual_seq_lengths": [90, 3 + at]}
    for turn in range(3):
        with torch.device("meta") if turn == 2 * at else torch.device("cpu"):
            out = incre_flash_attention(**call)
        assert_accurate(out, None, call)
    assert repeats == [False, True, True]


@pytest.mark.parametrize("shape", [(2, 2, 96), (2,)])
def test_scales_without_memory_are_refused(shape: tuple[int, ...], repeats: list[bool]) -> None:
    mode = {"antiquant_mode": "per_token"} if len(shape) == 3 else {}
    for kept in range(2):
        for _ in range(kept):
            attend(0, antiquant_scale=scales_of(shape), **mode)
        scale = scales_of(shape)
        scale.untyped_storage().resize_(0)
        q = torch.randn(2, 8, 1, 64).bfloat16()
        k = torch.zeros(2, 2, 96, 64, dtype=torch.int8)
        with pytest.raises(NotImplementedError, match="`antiquant_scale` must have memory"):
            incre_flash_attention(q, k, k, antiquant_scale=scale, **mode, **HEADS)
    assert True not in repeats


def scales_of(shape: tuple[int, ...]) -> torch.Tensor:
    scale = (1 + torch.rand(shape)) / 64
    return scale if len(shape) == 3 else scale.bfloat16()


@pytest.mark.parametrize(
    "options",
    [
        {"actual_seq_lengths": torch.tensor([5, 96], dtype=torch.int32)},
        {"atten_mask": torch.zeros(2, 96, dtype=torch.bool)},
        {"quant_scale2": torch.tensor([32.0])},
        {"sinks": torch.zeros(8)},
    ],
    ids=["device_lengths", "mask", "int8_result", "sinks"],
)
def test_calls_that_need_more_are_no_repetitions(
    options: dict[str, Any], repeats: list[bool]
) -> None:
    for seed in range(2):
        attend(seed, **options)
    assert repeats == [False, False]


def test_value_checks_are_not_skipped(repeats: list[bool], monkeypatch: pytest.MonkeyPatch) -> None:
    attend(0)
    monkeypatch.setenv("FA_TRITON_CHECK_VALUES", "1")
    attend(0)
    assert repeats == [False]


def test_other_cores_plan_anew(repeats: list[bool]) -> None:
    attend(0)
    torch.set_num_threads(2)
    attend(0)
    torch.set_num_threads(1)
    assert repeats == [False, False]


def test_a_table_that_was_written_to_is_not_used(repeats: list[bool]) -> None:
    attend(0)
    next(iter(steps._steps.values())).planned.table.zero_()
    attend(1)
    assert repeats == [False, False]
