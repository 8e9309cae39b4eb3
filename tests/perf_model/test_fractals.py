"""The copy of fractals to rows on A2 and A3, counted: every used key is read once, written once."""

from __future__ import annotations

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.targets import target
from fa_triton.variants import variant_of_key
from perf.model.counts import Counts, count
from perf.model.interpreter import execute
from perf.model.program import compiled
from perf.model.recording import RecordedLaunch, recorded

HEADS, DIM, DIM_V, ELEMENT_BYTES = 2, 128, 64, 2


def launches(name: str, lens: list[int], page_size: int) -> list[RecordedLaunch]:
    """What decode over a cache in fractals launches on one matrix core."""
    pages = -(-max(lens) // page_size)
    k, v = (
        torch.zeros(len(lens) * pages, HEADS, dim // 16, page_size, 16).bfloat16()
        for dim in (DIM, DIM_V)
    )
    with recorded(target(name)) as found:
        flash_attn(
            torch.zeros(len(lens), 1, 4 * HEADS, DIM).bfloat16(),
            k,
            v,
            block_table=torch.arange(len(k), dtype=torch.int32).view(len(lens), pages),
            seqused_kv=torch.tensor(lens, dtype=torch.int32),
            max_seqlen_kv=max(lens),
            layout_kv="PA_NZ",
        )
    return found


def copied(name: str, launch: RecordedLaunch) -> list[Counts]:
    """What each program of a copy does."""
    form = compiled(variant_of_key(launch.key), name)
    whole = launch.launch(form.names)
    return [count(execute(form.module, whole, block=b)) for b in range(launch.programs)]


@pytest.mark.compile
@pytest.mark.parametrize("name", ["A2", "A3"])
@pytest.mark.parametrize(("page_size", "step"), [(128, 64), (48, 48), (16, 16)])
def test_every_used_key_is_copied_once(name: str, page_size: int, step: int) -> None:
    lens = [500, 0, 130, 1]
    copy, forward = launches(name, lens, page_size)[:2]
    assert (copy.kernel, copy.programs, forward.kernel) == ("unfold_fractals", 2, "attn_forward")
    assert "is_nz" not in forward.key
    assert copy.arguments["step"] == step
    programs = copied(name, copy)
    key_bytes = HEADS * (DIM + DIM_V) * ELEMENT_BYTES
    for moved in ("caller_read", "caller_written"):
        assert sum(getattr(program, moved) for program in programs) == sum(lens) * key_bytes
    # tasks go round: no program has more than one more than another
    tiles = [program.transfers // 4 for program in programs]
    assert sum(tiles) == HEADS * sum(-(-length // step) for length in lens)
    assert max(tiles) - min(tiles) <= 1


def test_a5_loads_fractals_as_they_lie() -> None:
    forward = launches("A5", [500], 128)[0]
    assert forward.kernel == "attn_forward"
    assert "-is_nz-" in forward.key
