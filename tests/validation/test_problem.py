"""The frozen problem and the axes of layouts."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from fa_triton.layout import Strides, extents, lse_strides, strides
from fa_triton.validation import validate_flash_attn
from tests.validation.calls import dense, floats, ints, packed, paged, tensor


def test_fields_of_a_dense_call() -> None:
    problem = validate_flash_attn(
        **dense(sinks=floats(4), mask_mode=3, softmax_scale=0.125, return_softmax_lse=True)
    )
    assert (problem.batch_size, problem.seqlen_q, problem.seqlen_kv) == (2, 8, 16)
    assert (problem.total_q, problem.total_kv) == (16, 32)
    assert (problem.num_heads_q, problem.num_heads_kv, problem.group) == (4, 2, 2)
    assert (problem.dtype, problem.device) == (torch.float16, torch.device("meta"))
    assert (problem.softmax_scale, problem.has_sinks) == (0.125, True)
    assert problem.return_softmax_lse is True
    assert problem.out_shape == (2, 8, 4, 64)
    assert problem.lse_shape == (2, 4, 8)
    assert not problem.is_paged


def test_fields_of_a_packed_call() -> None:
    problem = validate_flash_attn(**packed(max_seqlen_q=9))
    assert (problem.batch_size, problem.seqlen_q, problem.seqlen_kv) == (3, 9, -1)
    assert (problem.total_q, problem.total_kv) == (20, 40)
    assert problem.out_shape == (20, 4, 64)
    assert problem.lse_shape == (4, 20)


def test_fields_of_a_paged_call() -> None:
    problem = validate_flash_attn(**paged())
    assert problem.is_paged
    assert (problem.page_size, problem.seqlen_kv) == (32, 160)


@pytest.mark.parametrize(
    ("layout_out", "shape"), [("BNSD", (2, 4, 8, 64)), ("BSND", (2, 8, 4, 64))]
)
def test_result_of_head_major_queries(layout_out: str, shape: tuple[int, ...]) -> None:
    q, k = tensor(2, 4, 8, 64), tensor(2, 2, 16, 64)
    problem = validate_flash_attn(q, k, k, layout_q="BNSD", layout_kv="BNSD", layout_out=layout_out)
    assert problem.out_shape == shape
    assert problem.lse_shape == (2, 4, 8)


@pytest.mark.parametrize(
    ("mode", "left", "right", "window", "causal"),
    [
        (0, -1, -1, (-1, -1), False),
        (3, -1, -1, (-1, 0), True),
        (4, -1, -1, (-1, -1), False),
        (4, -1, 0, (-1, 0), True),
        (4, 7, 0, (7, 0), True),
        (4, 7, 2, (7, 2), False),
        (4, 0, 0, (0, 0), True),
        (4, 2**30, 2**31 - 1, (-1, -1), False),
        (4, 2**30 - 1, -1, (2**30 - 1, -1), False),
    ],
)
def test_window(mode: int, left: int, right: int, window: tuple[int, int], causal: bool) -> None:
    problem = validate_flash_attn(**dense(mask_mode=mode, win_left=left, win_right=right))
    assert problem.window == window
    assert problem.is_causal is causal
    assert problem.has_left_window is (window[0] >= 0)
    assert problem.has_right_window is (window[1] >= 0)


def test_a_problem_is_frozen_and_hashable() -> None:
    problem = validate_flash_attn(**dense())
    assert hash(problem) == hash(validate_flash_attn(**dense()))
    with pytest.raises(dataclasses.FrozenInstanceError):
        problem.mask_mode = 3  # type: ignore[misc]


def test_sides_share_their_form() -> None:
    problem = validate_flash_attn(**packed(seqused_kv=ints(3), max_seqlen_kv=30))
    q, kv = problem.side("q"), problem.side("kv")
    assert (q.layout, q.total, q.max_seqlen, q.has_cu_seqlens, q.has_seqused) == (
        "TND",
        20,
        -1,
        True,
        False,
    )
    assert (kv.total, kv.max_seqlen, kv.seqlen, kv.has_seqused) == (40, 30, 30, True)


@pytest.mark.parametrize(
    ("layout", "shape", "sizes", "steps"),
    [
        ("BSND", (2, 8, 4, 64), (2, 8, 4, 64), (2048, 256, 64)),
        ("BNSD", (2, 4, 8, 64), (2, 8, 4, 64), (2048, 64, 512)),
        ("TND", (20, 4, 64), (1, 20, 4, 64), (0, 256, 64)),
        ("PA_BBND", (10, 32, 2, 64), (10, 32, 2, 64), (4096, 128, 64)),
        ("PA_BNBD", (10, 2, 32, 64), (10, 32, 2, 64), (4096, 64, 2048)),
        ("PA_NZ", (10, 2, 4, 32, 16), (10, 32, 2, 64), (4096, 16, 2048, 512)),
    ],
)
def test_axes(
    layout: str,
    shape: tuple[int, ...],
    sizes: tuple[int, int, int, int],
    steps: tuple[int, ...],
) -> None:
    got = extents(tensor(*shape), layout)
    assert (got.outer, got.tokens, got.heads, got.head_dim) == sizes
    assert strides(tensor(*shape), layout) == Strides(*steps)


def test_axes_of_the_log_sum_exp() -> None:
    assert lse_strides(floats(2, 4, 8), "BNSD") == Strides(outer=32, token=1, head=8)
    assert lse_strides(floats(4, 20), "TND") == Strides(outer=0, token=1, head=20)
