"""The compositions of docs/flash_attn.md, run as they stand there: cascade, context parallelism."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from fa_triton import flash_attn
from fa_triton.reference import flash_attn_emulation, flash_attn_reference
from tests.flash_attn.batches import starts
from tests.flash_attn.paging import Paging
from tests.oracle import FLOAT32_STEP, RMS_FACTOR

PAGE = Path(__file__).parents[2] / "docs" / "flash_attn.md"
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
DTYPES = [
    torch.float16,
    pytest.param(torch.bfloat16, marks=pytest.mark.slow),
    pytest.param(torch.float32, marks=pytest.mark.slow),
]
HEADS, DIM = (8, 2), 64
SCALE = {"softmax_scale": DIM**-0.5}
PAGING = Paging("PA_BBND", 16)
SHARED_PAGES = 9
# decode, and decode with drafts and prefill
LENGTHS = {
    "decode": ((1, 1, 1, 1), (40, 1, 17, 200)),
    "mixed": ((1, 9, 3, 20), (1, 9, 60, 31)),
}
pytestmark = pytest.mark.usefixtures("nan_filled_memory")

Result = tuple[torch.Tensor, torch.Tensor]


def documented(name: str, attend: Callable[..., Result]) -> Callable[..., Result]:
    """A function of the page, computing with ``attend``."""
    (code,) = (example for example in EXAMPLES if f"def {name}(" in example)
    names: dict[str, Any] = {}
    exec(compile(code, PAGE.name, "exec"), names)
    names["flash_attn"] = attend
    return names[name]


def assert_as_exact_as_its_parts(result: Result, emulated: Result, exact: Result) -> None:
    """The budget of one call, but the parts are rounded too: emulations of them, merged alike."""
    (out, lse), (emulated_out, _), (exact_out, exact_lse) = result, emulated, exact
    rms, allowed = (
        (values.double() - exact_out).square().mean().sqrt().item()
        for values in (out, emulated_out)
    )
    floor = 2 * FLOAT32_STEP * exact_out.square().mean().sqrt().item()
    assert rms <= (RMS_FACTOR + out.numel() ** -0.5) * allowed + floor
    torch.testing.assert_close(lse.double(), exact_lse, atol=1e-5, rtol=1e-6)


@pytest.mark.parametrize("has_sinks", [False, True])
@pytest.mark.parametrize("rows", LENGTHS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_shared_prefix(dtype: torch.dtype, rows: str, has_sinks: bool) -> None:
    q_lens, own_lens = LENGTHS[rows]
    prefix = SHARED_PAGES * PAGING.page_size
    kv_lens = tuple(prefix + length for length in own_lens)
    generator = torch.Generator().manual_seed(5)
    q = torch.randn(sum(q_lens), HEADS[0], DIM, generator=generator).to(dtype)
    keys, values = (
        [torch.randn(length, HEADS[1], DIM, generator=generator).to(dtype) for length in kv_lens]
        for _ in "kv"
    )
    table = PAGING.table(kv_lens, kv_lens, generator)
    k, v = PAGING.cache(keys, table), PAGING.cache(values, table)
    # the other sequences' own copies of the prefix stay unused
    table[1:, :SHARED_PAGES] = table[:1, :SHARED_PAGES]
    call: dict[str, Any] = {
        "block_table": table,
        "cu_seqlens_q": starts(q_lens),
        "seqused_kv": torch.tensor(kv_lens, dtype=torch.int32),
        **SCALE,
    }
    sinks = {"sinks": torch.randn(HEADS[0], generator=generator), "lse_includes_sink": True}

    def attend_with(attend: Callable[..., Result]) -> Callable[..., Result]:
        """Put the sinks into the call that is causal."""

        def call_once(*tensors: torch.Tensor, **options: Any) -> Result:
            extra = sinks if has_sinks and "mask_mode" in options else {}
            return attend(*tensors, **options, **extra)

        return call_once

    result, emulated = (
        documented("shared_prefix_attention", attend_with(attend))(
            q, k, v, shared_pages=SHARED_PAGES, **call
        )
        for attend in (flash_attn, flash_attn_emulation)
    )
    exact = flash_attn_reference(
        q,
        k,
        v,
        layout_q="TND",
        layout_kv="PA_BBND",
        layout_out="TND",
        mask_mode=3,
        return_softmax_lse=True,
        out_dtype=torch.float64,
        **call,
        **(sinks if has_sinks else {}),
    )
    assert_as_exact_as_its_parts(result, emulated, exact)


@pytest.mark.parametrize("parts", [(100,), (50, 1, 9, 40)], ids=str)
@pytest.mark.parametrize("q_len", [1, 45])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_context_parallel(dtype: torch.dtype, q_len: int, parts: tuple[int, ...]) -> None:
    """Queries reach back over several parts: their rows see nothing of the last ones."""
    generator = torch.Generator().manual_seed(6)
    q = torch.randn(2, q_len, HEADS[0], DIM, generator=generator).to(dtype)
    k, v = (torch.randn(2, sum(parts), HEADS[1], DIM, generator=generator).to(dtype) for _ in "kv")
    pairs = list(zip(k.split(list(parts), 1), v.split(list(parts), 1), strict=True))
    result, emulated = (
        documented("context_parallel_attention", attend)(q, pairs, **SCALE)
        for attend in (flash_attn, flash_attn_emulation)
    )
    exact = flash_attn_reference(
        q, k, v, mask_mode=3, return_softmax_lse=True, out_dtype=torch.float64, **SCALE
    )
    assert_as_exact_as_its_parts(result, emulated, exact)
