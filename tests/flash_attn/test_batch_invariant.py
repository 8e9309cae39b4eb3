"""batch_invariant: the result of a sequence has the same bits in every batch, on any cores."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import flash_attn, flash_attn_metadata
from fa_triton.planner.invariant import INVARIANT_KEYS
from fa_triton.planner.table import read_header
from tests.flash_attn.batches import MASKS, starts
from tests.flash_attn.paging import Paging
from tests.oracle import assert_accurate

# decode and draft rows longer and shorter than a part, no query at all, prefill
Q_LENS = (1, 1, 3, 90, 1, 0, 16, 40)
KV_LENS = (2 * INVARIANT_KEYS + 77, 50, INVARIANT_KEYS + 1, 300, INVARIANT_KEYS, 9, 2300, 40)
CORES = (1, 3, 24)
EVERY = tuple(range(8))
ORDERS = [EVERY, EVERY[::-1], (3, 0, 7, 2, 5, 1, 6, 4)]
# batches of decode alone and of a few sequences make other choices where they may
SOME = [(b,) for b in (0, 1, 2, 3, 6)] + [(0, 4, 1), (7, 2, 0)]
pytestmark = pytest.mark.usefixtures("nan_filled_memory")

Results = dict[int, tuple[torch.Tensor, torch.Tensor]]


class Sequences:
    """Eight sequences, and calls on any choice of them."""

    def __init__(
        self,
        paging: Paging | None = None,
        heads: tuple[int, int] = (6, 2),
        head_dim: int = 64,
        **options: Any,
    ) -> None:
        generator = torch.Generator().manual_seed(4)

        def make(lens: tuple[int, ...], count: int) -> list[torch.Tensor]:
            shapes = [(length, count, head_dim) for length in lens]
            return [torch.randn(shape, generator=generator).half() for shape in shapes]

        self.paging, self.heads, self.head_dim = paging, heads, head_dim
        self.queries = make(Q_LENS, heads[0])
        self.keys, self.values = make(KV_LENS, heads[1]), make(KV_LENS, heads[1])
        self.mask = {name: options.pop(name) for name in MASKS["band"] if name in options}
        self.options = {
            "softmax_scale": 0.125,
            "return_softmax_lse": True,
            "sinks": torch.randn(heads[0], generator=generator),
            **options,
        }

    def attend(self, chosen: tuple[int, ...], num_aic: int | None) -> Results:
        """Return result and log-sum-exp of every sequence; plan inside the call without cores."""
        q_lens = tuple(Q_LENS[b] for b in chosen)
        kv_lens = tuple(KV_LENS[b] for b in chosen)
        keys, values = ([side[b] for b in chosen] for side in (self.keys, self.values))
        planned: dict[str, Any] = {
            "layout_q": "TND",
            "layout_out": "TND",
            "cu_seqlens_q": starts(q_lens),
            "batch_invariant": True,
            **self.mask,
        }
        options, plan = self.options, {}
        if self.paging is None:
            planned |= {"layout_kv": "TND", "cu_seqlens_kv": starts(kv_lens)}
            k, v = torch.cat(keys), torch.cat(values)
        else:
            used = torch.tensor(kv_lens, dtype=torch.int32)
            planned |= {"layout_kv": self.paging.layout, "seqused_kv": used}
            plan = {"page_size": self.paging.page_size}
            table = self.paging.table(kv_lens, kv_lens, torch.Generator().manual_seed(len(chosen)))
            options = {**options, "block_table": table}
            k, v = self.paging.cache(keys, table), self.paging.cache(values, table)
        metadata = None
        if num_aic is not None:
            plan |= {"num_aic": num_aic, **planned}
            metadata = flash_attn_metadata(*self.heads, self.head_dim, **plan)
            if len(chosen) == len(EVERY) and self.mask.get("win_left") != 0:
                assert read_header(metadata.numpy()).is_fd
        q = torch.cat([self.queries[b] for b in chosen])
        out, lse = flash_attn(q, k, v, metadata=metadata, **planned, **options)
        assert_accurate(out, lse, q, k, v, **planned, **options)
        sizes = list(q_lens)
        return dict(
            zip(chosen, zip(out.split(sizes), lse.split(sizes, 1), strict=True), strict=True)
        )


def check(sequences: Sequences, batches: list[tuple[int, ...]]) -> None:
    """Every batch on every number of cores gives the bits of all eight on one."""
    wanted = sequences.attend(EVERY, 1)
    for num_aic in (*CORES, None):
        for chosen in batches:
            for b, (out, lse) in sequences.attend(chosen, num_aic).items():
                assert torch.equal(out, wanted[b][0])
                assert torch.equal(lse, wanted[b][1])


def test_in_any_order() -> None:
    check(Sequences(mask_mode=3), ORDERS)


def test_alone_and_in_small_batches() -> None:
    check(Sequences(mask_mode=3), SOME)


@pytest.mark.parametrize("layout", ["PA_BNBD", pytest.param("PA_NZ", marks=pytest.mark.slow)])
def test_on_pages(layout: str) -> None:
    check(Sequences(Paging(layout, 48), mask_mode=3), [*ORDERS[1:], *SOME[:3]])


@pytest.mark.slow
@pytest.mark.parametrize("mask", MASKS)
def test_masks(mask: str) -> None:
    options = dict(MASKS[mask])
    if "win_left" in options and mask != "diagonal":
        # some parts in front of the window are empty, some are cut by it
        options["win_left"] = INVARIANT_KEYS + 100
    check(Sequences(**options), [EVERY, *SOME])


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        {"heads": (2, 2), "mask_mode": 3},
        {"heads": (5, 1), "head_dim": 40},
        {"softcap": 20.0, "alibi_slopes": 0.1 * torch.arange(6.0), "mask_mode": 3},
        {"lse_includes_sink": True, "paging": Paging("PA_BBND", 1024)},
    ],
    ids=lambda options: "-".join(options),
)
def test_forms(options: dict[str, Any]) -> None:
    check(Sequences(**options), [EVERY, *SOME])
