"""Small inputs that break attention implementations, each with the property that must hold.

A case is a function of ``attend`` (called like ``flash_attn``), a dtype and a device, so that every
implementation runs the same list: ``@pytest.mark.parametrize("case", SMALL_INPUTS, ids=str)``.
"""

from __future__ import annotations

import math
import mmap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from fa_triton import flash_attn_metadata
from tests.oracle import assert_accurate

HEAD_DIM = 64
SCALE = HEAD_DIM**-0.5


class Attend(Protocol):
    """Called like ``flash_attn``; returns the result and the log-sum-exp."""

    def __call__(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
    ) -> tuple[torch.Tensor, torch.Tensor]: ...


Check = Callable[[Attend, torch.dtype, torch.device], None]


@dataclass(frozen=True)
class SmallInput:
    """A named case; calling it runs the implementation and asserts the property."""

    name: str
    check: Check

    def __call__(
        self, attend: Attend, dtype: torch.dtype, device: torch.device | None = None
    ) -> None:
        self.check(attend, dtype, device or torch.device("cpu"))

    def __str__(self) -> str:
        return self.name


SMALL_INPUTS: list[SmallInput] = []


def small_input(check: Check) -> Check:
    SMALL_INPUTS.append(SmallInput(check.__name__, check))
    return check


class Maker:
    """Random tensors of one dtype on one device, seeded."""

    def __init__(self, dtype: torch.dtype, device: torch.device, seed: int = 0) -> None:
        self.dtype = dtype
        self.device = device
        self.generator = torch.Generator().manual_seed(seed)

    def tensor(self, *shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=self.generator).to(self.device, self.dtype)

    def lengths(self, *values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int32, device=self.device)

    def floats(self, *values: float) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.float32, device=self.device)

    def untouched(self, *shape: int) -> torch.Tensor:
        """Memory that costs nothing on a host until it is written to."""
        if self.device.type != "cpu":
            return torch.empty(shape, dtype=self.dtype, device=self.device)
        size = math.prod(shape) * self.dtype.itemsize
        memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        return torch.frombuffer(memory, dtype=self.dtype).view(shape)


def attend_and_compare(
    attend: Attend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend with a log-sum-exp and hold the result to the error budget."""
    options = {"softmax_scale": SCALE, "return_softmax_lse": True} | options
    out, lse = attend(q, k, v, **options)
    assert_accurate(out.cpu(), lse.cpu(), q, k, v, **options)
    return out, lse


def assert_empty(out: torch.Tensor, lse: torch.Tensor) -> None:
    assert torch.equal(out, torch.zeros_like(out))
    assert torch.equal(lse, torch.full_like(lse, torch.inf))


def assert_near(actual: torch.Tensor, expected: torch.Tensor) -> None:
    """Equal up to other tiles or another plan, which move the roundings of P and the result."""
    step = max(2 * torch.finfo(expected.dtype).eps, 1e-5)
    atol = step * expected.abs().max().item()
    torch.testing.assert_close(actual, expected, atol=atol, rtol=0)


@small_input
def more_queries_than_keys_causal(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = make.tensor(1, 3, 2, 64), make.tensor(1, 1, 2, 64), make.tensor(1, 1, 2, 64)
    out, lse = attend_and_compare(attend, q, k, v, mask_mode=3)
    assert_empty(out[:, :2], lse[:, :, :2])
    assert torch.equal(out[0, 2], v[0, 0])


@small_input
def one_of_four_sequences_without_keys(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q = make.tensor(4, 5, 4, 64)
    k, v = make.tensor(4, 40, 2, 64), make.tensor(4, 40, 2, 64)
    for mask_mode in (0, 3):
        out, lse = attend_and_compare(
            attend, q, k, v, mask_mode=mask_mode, seqused_kv=make.lengths(40, 0, 7, 33)
        )
        assert_empty(out[1], lse[1])


@small_input
def all_sequences_without_keys(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = make.tensor(2, 3, 2, 64), make.tensor(2, 4, 2, 64), make.tensor(2, 4, 2, 64)
    out, lse = attend_and_compare(attend, q, k, v, seqused_kv=make.lengths(0, 0))
    assert_empty(out, lse)


@small_input
def window_of_two(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 5, 2, 64) for _ in range(3))
    out, _ = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=1, win_right=0)
    k[:, :3] = 1000
    v[:, :3] = 1000
    again, _ = attend(q, k, v, mask_mode=4, win_left=1, win_right=0, softmax_scale=SCALE)
    # The last row sees keys 3 and 4 only.
    assert torch.equal(again[:, 4], out[:, 4])


@small_input
def window_of_three_in_a_later_chunk(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 4, 2, 64)
    k, v = make.tensor(1, 10, 2, 64), make.tensor(1, 10, 2, 64)
    out, _ = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=2, win_right=0)
    # Row 0 stands at position 6 of 10, so it sees keys 4, 5 and 6.
    first, _ = attend(q[:, :1], k[:, 4:7], v[:, 4:7], softmax_scale=SCALE)
    assert_near(out[:, :1], first)


@small_input
def window_of_one_key(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(2, 6, 2, 64) for _ in range(3))
    out, _ = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=0, win_right=0)
    assert torch.equal(out, v)


@small_input
def window_ahead_of_the_diagonal(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 70, 2, 64) for _ in range(3))
    for win_left, win_right in ((-1, 5), (3, -1), (0, 40), (17, 2)):
        attend_and_compare(attend, q, k, v, mask_mode=4, win_left=win_left, win_right=win_right)


@small_input
def window_left_of_all_keys(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 9, 2, 64)
    k, v = make.tensor(1, 4, 2, 64), make.tensor(1, 4, 2, 64)
    # Row i stands at position i - 5: rows up to 3 see no key even with one key to the right.
    out, lse = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=2, win_right=1)
    assert_empty(out[:, :4], lse[:, :, :4])


@small_input
def unlimited_window_is_no_mask(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 33, 2, 64) for _ in range(3))
    plain, plain_lse = attend_and_compare(attend, q, k, v)
    for width in (-1, 2**31 - 1):
        out, lse = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=width, win_right=width)
        assert_near(out, plain)
        torch.testing.assert_close(lse, plain_lse)


@small_input
def window_mode_can_be_causal(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(2, 21, 2, 64)
    k, v = make.tensor(2, 37, 2, 64), make.tensor(2, 37, 2, 64)
    causal, _ = attend_and_compare(attend, q, k, v, mask_mode=3)
    window, _ = attend_and_compare(attend, q, k, v, mask_mode=4, win_left=-1, win_right=0)
    assert_near(window, causal)


@small_input
def nan_behind_the_used_keys(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(2, 3, 4, 64)
    k, v = make.tensor(2, 16, 2, 64), make.tensor(2, 16, 2, 64)
    short, short_lse = attend_and_compare(attend, q, k[:, :5], v[:, :5], mask_mode=3)
    k[:, 5:] = torch.nan
    v[:, 5:] = torch.nan
    out, lse = attend(
        q,
        k,
        v,
        mask_mode=3,
        seqused_kv=make.lengths(5, 5),
        softmax_scale=SCALE,
        return_softmax_lse=True,
    )
    assert_near(out, short)
    torch.testing.assert_close(lse, short_lse)


@small_input
def nan_behind_the_used_keys_of_a_page(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 3, 4, 64)
    k, v = make.tensor(1, 16, 2, 64), make.tensor(1, 16, 2, 64)
    short, short_lse = attend_and_compare(attend, q, k[:, :5], v[:, :5], mask_mode=3)
    k[:, 5:] = torch.nan
    v[:, 5:] = torch.nan
    out, lse = attend_and_compare(
        attend,
        q,
        k,
        v,
        mask_mode=3,
        seqused_kv=make.lengths(5),
        block_table=make.lengths(0)[None],
        layout_kv="PA_BBND",
    )
    assert out.isfinite().all()
    assert_near(out, short)
    torch.testing.assert_close(lse, short_lse)


@small_input
def rubbish_behind_the_used_pages(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(3, 2, 4, 64)
    k, v = make.tensor(4, 16, 2, 64), make.tensor(4, 16, 2, 64)
    options = {
        "seqused_kv": make.lengths(30, 16, 0),
        "mask_mode": 3,
        "layout_kv": "PA_BBND",
    }
    wanted, wanted_lse = attend_and_compare(
        attend, q, k, v, block_table=make.lengths(3, 1, 0, 0, 0, 0).view(3, 2), **options
    )
    for tail in (-1, 10**9):
        rows = (3, 1, tail, tail, 0, tail, tail, tail, tail, tail, tail, tail)
        table = make.lengths(*rows).view(3, 4)
        out, lse = attend_and_compare(attend, q, k, v, block_table=table, **options)
        assert torch.equal(out, wanted)
        assert torch.equal(lse, wanted_lse)


@small_input
def page_8192_of_2_18_elements(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 2, 8, 64)
    near = make.tensor(1, 1024, 4, 64), make.tensor(1, 1024, 4, 64)
    k, v = (make.untouched(8193, 1024, 4, 64) for _ in near)
    # 2^31 elements in: beyond what 32 bits can address
    k[8192], v[8192] = near[0][0], near[1][0]
    options = {
        "softmax_scale": SCALE,
        "return_softmax_lse": True,
        "seqused_kv": make.lengths(50),
        "layout_kv": "PA_BBND",
    }
    out, lse = attend(q, k, v, block_table=make.lengths(8192)[None], **options)
    options["block_table"] = make.lengths(0)[None]
    assert_accurate(out.cpu(), lse.cpu(), q, *near, **options)


@small_input
def nan_behind_the_used_queries(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(3, 20, 2, 64) for _ in range(3))
    q[1, 4:] = torch.nan
    out, lse = attend_and_compare(attend, q, k, v, mask_mode=3, seqused_q=make.lengths(20, 4, 0))
    assert_empty(out[1, 4:], lse[1, :, 4:])
    assert_empty(out[2], lse[2])


@small_input
def packed_rows_after_the_last_sequence(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(8, 2, 64) for _ in range(3))
    cu = make.lengths(0, 3, 7)
    layouts = {"layout_q": "TND", "layout_kv": "TND", "layout_out": "TND"}
    out, lse = attend_and_compare(
        attend, q, k, v, cu_seqlens_q=cu, cu_seqlens_kv=cu, max_seqlen_q=4, mask_mode=3, **layouts
    )
    assert_empty(out[7], lse[:, 7])


@small_input
def used_lengths_win_over_packed_ones(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(40, 4, 64) for _ in range(3))
    cu = make.lengths(0, 25, 25, 40)
    used = make.lengths(9, 0, 15)
    # The room between a used length and the next segment is nobody's: it may hold anything.
    k[9:25] = torch.nan
    v[9:25] = torch.nan
    out, lse = attend_and_compare(
        attend,
        q,
        k,
        v,
        cu_seqlens_q=cu,
        cu_seqlens_kv=cu,
        seqused_q=used,
        seqused_kv=used,
        mask_mode=3,
        layout_q="TND",
        layout_kv="TND",
        layout_out="TND",
    )
    assert_empty(out[9:25], lse[:, 9:25])


def plans_of_decode(
    lengths: torch.Tensor, heads: tuple[int, int], **options: Any
) -> list[torch.Tensor]:
    """Plans that leave all rows whole, and that cut them into as many parts as possible."""
    return [
        flash_attn_metadata(
            *heads,
            HEAD_DIM,
            seqused_kv=lengths,
            max_seqlen_q=1,
            max_seqlen_kv=int(lengths.max()),
            mask_mode=3,
            num_aic=num_aic,
            block_kv=32,
            **options,
        )
        for num_aic in (1, 4096)
    ]


@small_input
def every_decode_length(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 1, 4, 64)
    k, v = make.tensor(1, 300, 2, 64), make.tensor(1, 300, 2, 64)
    # One batch of all lengths: row b of the batch attends to b + 1 keys of the same cache.
    lengths = torch.arange(1, 301, dtype=torch.int32, device=device)
    batch = [tensor.expand(300, -1, -1, -1) for tensor in (q, k, v)]
    options = {"seqused_kv": lengths, "mask_mode": 3}
    out, lse = attend_and_compare(attend, *batch, **options)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    for metadata in plans_of_decode(lengths, (4, 2)):
        again, again_lse = attend(
            *batch, metadata=metadata, softmax_scale=SCALE, return_softmax_lse=True, **options
        )
        assert_near(again, out)
        torch.testing.assert_close(again_lse, lse)
    for length in (1, 2, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300):
        alone, alone_lse = attend_and_compare(attend, q, k[:, :length], v[:, :length], mask_mode=3)
        assert_near(out[length - 1], alone[0])
        torch.testing.assert_close(lse[length - 1], alone_lse[0])


@small_input
def every_decode_length_on_pages(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 1, 4, 64).expand(300, -1, -1, -1)
    k, v = make.tensor(20, 16, 2, 64), make.tensor(20, 16, 2, 64)
    order = torch.randperm(20, generator=make.generator)[:19]
    lengths = torch.arange(1, 301, dtype=torch.int32, device=device)
    options = {
        "seqused_kv": lengths,
        "block_table": make.lengths(*order.tolist()).expand(300, -1),
        "layout_kv": "PA_BBND",
        "mask_mode": 3,
    }
    out, lse = attend_and_compare(attend, q, k, v, **options)
    assert out.isfinite().all()
    assert lse.isfinite().all()
    for metadata in plans_of_decode(lengths, (4, 2), layout_kv="PA_BBND", page_size=16):
        again, again_lse = attend(
            q, k, v, metadata=metadata, softmax_scale=SCALE, return_softmax_lse=True, **options
        )
        assert_near(again, out)
        torch.testing.assert_close(again_lse, lse)


@small_input
def a_sequence_alone_and_with_seven_others(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    # 2100 keys are cut, batch or not; the others are decode rows too
    q = make.tensor(8, 1, 4, 64)
    k, v = make.tensor(8, 2100, 2, 64), make.tensor(8, 2100, 2, 64)
    lengths = (2100, 1, 700, 0, 64, 2099, 2048, 5)
    options = {"mask_mode": 3, "batch_invariant": True}
    out, lse = attend_and_compare(attend, q, k, v, seqused_kv=make.lengths(*lengths), **options)
    for b, length in enumerate(lengths):
        alone, alone_lse = attend(
            *(tensor[b : b + 1] for tensor in (q, k, v)),
            seqused_kv=make.lengths(length),
            softmax_scale=SCALE,
            return_softmax_lse=True,
            **options,
        )
        assert torch.equal(alone[0], out[b])
        assert torch.equal(alone_lse[0], lse[b])


@small_input
def prefill_in_chunks_is_prefill(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(1, 100, 4, 64)
    k, v = make.tensor(1, 100, 2, 64), make.tensor(1, 100, 2, 64)
    whole, _ = attend_and_compare(attend, q, k, v, mask_mode=3)
    ends = (37, 38, 80, 100)
    parts = []
    for start, end in zip((0, *ends[:-1]), ends, strict=True):
        part, _ = attend_and_compare(attend, q[:, start:end], k[:, :end], v[:, :end], mask_mode=3)
        parts.append(part)
    assert_near(torch.cat(parts, 1), whole)


@small_input
def batch_order_does_not_matter(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(4, 30, 2, 64) for _ in range(3))
    used = make.lengths(30, 3, 0, 17)
    out, _ = attend_and_compare(attend, q, k, v, seqused_kv=used, mask_mode=3)
    order = torch.tensor([2, 0, 3, 1], device=device)
    permuted, _ = attend_and_compare(
        attend, q[order], k[order], v[order], seqused_kv=used[order], mask_mode=3
    )
    assert_near(permuted, out[order])


@small_input
def query_heads_read_their_own_key_head(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    for num_heads_q, num_heads_kv in ((9, 3), (8, 1), (4, 4), (10, 2)):
        q = make.tensor(2, 7, num_heads_q, 64)
        k = make.tensor(2, 11, num_heads_kv, 64)
        head = torch.arange(num_heads_kv, device=device, dtype=dtype)
        v = head[None, None, :, None].expand(2, 11, num_heads_kv, 64)
        out, _ = attend_and_compare(attend, q, k, v.contiguous(), mask_mode=3)
        wanted = head.repeat_interleave(num_heads_q // num_heads_kv)
        visible = out[:, :, :, 0]
        assert_near(visible, wanted.expand_as(visible))


@small_input
def layouts_agree(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(2, 19, 4, 64)
    k, v = make.tensor(2, 45, 2, 64), make.tensor(2, 45, 2, 64)
    bsnd, bsnd_lse = attend_and_compare(attend, q, k, v, mask_mode=3)
    swapped = [x.transpose(1, 2).contiguous() for x in (q, k, v)]
    dense = {"layout_q": "BNSD", "layout_kv": "BNSD", "mask_mode": 3}
    bnsd, bnsd_lse = attend_and_compare(attend, *swapped, layout_out="BNSD", **dense)
    mixed, mixed_lse = attend_and_compare(attend, *swapped, layout_out="BSND", **dense)
    packed = [x.flatten(0, 1) for x in (q, k, v)]
    tnd, tnd_lse = attend_and_compare(
        attend,
        *packed,
        cu_seqlens_q=make.lengths(0, 19, 38),
        cu_seqlens_kv=make.lengths(0, 45, 90),
        layout_q="TND",
        layout_kv="TND",
        layout_out="TND",
        mask_mode=3,
    )
    assert_near(bnsd.transpose(1, 2), bsnd)
    assert_near(mixed, bsnd)
    assert_near(tnd.view_as(bsnd), bsnd)
    for lse in (bnsd_lse, mixed_lse, tnd_lse.view(4, 2, 19).transpose(0, 1)):
        torch.testing.assert_close(lse, bsnd_lse)


@small_input
def strided_views_of_k_and_v(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    # q is BSND in memory and BNSD by its axes; k and v are views with different strides.
    q = make.tensor(2, 6, 4, 64).transpose(1, 2)
    k = make.tensor(2, 2, 50, 192)[..., 64:128]
    v = make.tensor(50, 2, 2, 64).permute(1, 2, 0, 3)
    options = {"layout_q": "BNSD", "layout_kv": "BNSD", "layout_out": "BSND", "mask_mode": 3}
    strided, _ = attend_and_compare(attend, q, k, v, **options)
    dense, _ = attend_and_compare(attend, *(x.contiguous() for x in (q, k, v)), **options)
    assert_near(strided, dense)


@small_input
def negative_scale(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 40, 2, 64) for _ in range(3))
    minus, _ = attend_and_compare(attend, q, k, v, mask_mode=3, softmax_scale=-SCALE)
    plus, _ = attend_and_compare(attend, -q, k, v, mask_mode=3, softmax_scale=SCALE)
    assert_near(minus, plus)


@small_input
def large_logits(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (10 * make.tensor(1, 50, 2, 64) for _ in range(3))
    out, _ = attend_and_compare(attend, q, k, v, softmax_scale=1.0)
    assert out.isfinite().all()


@small_input
def sinks_take_weight(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k = make.tensor(1, 4, 2, 64), make.tensor(1, 4, 2, 64)
    ones = torch.ones(1, 4, 2, 64, dtype=dtype, device=device)
    for mask_mode in (0, 3):
        out, lse = attend_and_compare(
            attend, q, k, ones, mask_mode=mask_mode, sinks=make.floats(0.5, 2.0)
        )
        plain, plain_lse = attend_and_compare(attend, q, k, ones, mask_mode=mask_mode)
        assert (out < 1).all()
        assert_near(plain, ones)
        # The log-sum-exp does not count the sink.
        torch.testing.assert_close(lse, plain_lse)


@small_input
def huge_and_absent_sinks(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 70, 4, 64) for _ in range(3))
    sinks = make.floats(100.0, -100.0, -torch.inf, 1000.0)
    out, _ = attend_and_compare(attend, q, k, v, mask_mode=3, sinks=sinks)
    plain, _ = attend_and_compare(attend, q, k, v, mask_mode=3)
    assert out.isfinite().all()
    assert_near(out[:, :, 1:3], plain[:, :, 1:3])


@small_input
def sink_of_a_row_without_keys(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q = make.tensor(2, 3, 2, 64)
    k, v = make.tensor(2, 2, 2, 64), make.tensor(2, 2, 2, 64)
    out, lse = attend_and_compare(
        attend, q, k, v, mask_mode=3, seqused_kv=make.lengths(2, 0), sinks=make.floats(1.0, -3.0)
    )
    assert_empty(out[0, 0], lse[0, :, 0])
    assert_empty(out[1], lse[1])


@small_input
def counted_sink_of_a_row_without_keys(
    attend: Attend, dtype: torch.dtype, device: torch.device
) -> None:
    make = Maker(dtype, device)
    q = make.tensor(2, 3, 3, 64)
    k, v = make.tensor(2, 2, 1, 64), make.tensor(2, 2, 1, 64)
    sinks = make.floats(1.0, 100.0, -torch.inf)
    out, lse = attend_and_compare(
        attend,
        q,
        k,
        v,
        mask_mode=3,
        seqused_q=make.lengths(3, 2),
        seqused_kv=make.lengths(2, 0),
        sinks=sinks,
        lse_includes_sink=True,
    )
    # A sink of -inf is none; a padding row has no sink.
    expected = make.floats(1.0, 100.0, torch.inf)
    for values, logs in ((out[0, 0], lse[0, :, 0]), (out[1, 1], lse[1, :, 1])):
        assert torch.equal(values, torch.zeros_like(values))
        torch.testing.assert_close(logs, expected)
    assert_empty(out[1, 2], lse[1, :, 2])


@small_input
def soft_cap_of_large_logits(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    # q k is 100 for the first key, -100 for the second and 0 for the third.
    q = torch.full((1, 1, 1, 64), 1.25, dtype=dtype, device=device)
    k = torch.stack([q[0, 0], -q[0, 0], 0 * q[0, 0]])[None]
    v = make.tensor(1, 3, 1, 64)
    options = {"softmax_scale": 1.0, "softcap": 50.0}
    _, lse = attend_and_compare(attend, q, k, v, **options)
    assert abs(lse.item() - 50 * math.tanh(2)) < 1e-4
    _, lse = attend_and_compare(attend, -q, k[:, :1], v[:, :1], **options)
    assert abs(lse.item() + 50 * math.tanh(2)) < 1e-4


@small_input
def distance_bias_of_equal_logits(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    # q k is 0, so the bias alone decides: the last row stands at the last key.
    q, k = 0 * make.tensor(1, 3, 2, 64), make.tensor(1, 5, 2, 64)
    v = make.tensor(1, 5, 2, 64)
    slopes = make.floats(0.5, -2.0)
    _, lse = attend_and_compare(attend, q, k, v, alibi_slopes=slopes)
    for row in range(3):
        distance = (torch.arange(5, device=device) - row - 2).abs()
        wanted = torch.logsumexp(-slopes[:, None] * distance, 1)
        torch.testing.assert_close(lse[0, :, row], wanted)


@small_input
def no_log_sum_exp_wanted(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 5, 2, 64) for _ in range(3))
    wanted, _ = attend_and_compare(attend, q, k, v)
    out, lse = attend(q, k, v, softmax_scale=SCALE)
    assert_near(out, wanted)
    assert lse.shape == (1,)
    assert lse.dtype == torch.float32
    assert lse.item() == 0


@small_input
def one_token_of_everything(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    q, k, v = (make.tensor(1, 1, 1, 64) for _ in range(3))
    out, _ = attend_and_compare(attend, q, k, v, mask_mode=3)
    assert torch.equal(out, v)


@small_input
def head_dims(attend: Attend, dtype: torch.dtype, device: torch.device) -> None:
    make = Maker(dtype, device)
    for head_dim, head_dim_v in ((64, 64), (128, 128), (256, 256), (8, 8), (40, 80), (192, 128)):
        q = make.tensor(1, 35, 2, head_dim)
        k, v = make.tensor(1, 51, 1, head_dim), make.tensor(1, 51, 1, head_dim_v)
        attend_and_compare(attend, q, k, v, mask_mode=3, softmax_scale=head_dim**-0.5)
