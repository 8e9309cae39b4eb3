"""Hypothesis strategies that draw valid calls over all arguments together."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import strategies as st

from tests.incre_flash_attention.batches import DENSE, LIST, IncreBatch

LAYOUTS = ("BSH", "BSND", "BNSD")
CACHES = (DENSE, DENSE, LIST, LIST, "PA_BBND", "PA_BNBD", "PA_NZ")
QUANTS = (None, None, "per_tensor", "per_channel", "per_token", "per_token_head")
# masks with a row per query token
TREES = ("tree", "tree one", "head tree", "head tree one")
MASK_DTYPES = (torch.bool, torch.int8, torch.uint8)


@st.composite
def incre_batches(
    draw: st.DrawFn,
    *,
    longest: int = 20,
    max_tokens: int = 4,
    max_batch: int = 3,
    head_dims: tuple[int, ...] = (16, 32),
    groups: tuple[int, ...] = (1, 2, 3),
) -> IncreBatch:
    """Draw a valid call.

    Args:
        draw: Of hypothesis.
        longest: Largest number of own keys.
        max_tokens: Largest number of query tokens.
        max_batch: Most sequences.
        head_dims: Head dims to choose from.
        groups: Query heads per key/value head to choose from.
    """
    lens = st.sampled_from((0, 1, longest)) | st.integers(0, longest)
    size = draw(st.sampled_from((max_batch, 1)) | st.integers(1, max_batch))
    cache = draw(st.sampled_from(CACHES))
    quant = draw(st.sampled_from(QUANTS))
    has_prefix = quant not in ("per_token", "per_token_head") and draw(st.integers(0, 3)) == 0
    tokens = draw(st.just(1) | st.integers(1, max_tokens))
    lengths = draw(st.sampled_from(_length_forms(cache)))
    kv_lens = tuple(draw(lens) for _ in range(size))
    if lengths in ("one", "device one") or (lengths == "none" and cache == DENSE):
        kv_lens = (max(kv_lens[0], int(lengths == "none")),) * size
    is_padded = cache == DENSE and lengths != "none" and draw(st.booleans())
    # axes without lengths are full
    spare = 0 if lengths == "none" else draw(st.sampled_from((0, 0, 3)))
    heads_kv = draw(st.integers(1, 2))
    dtype = draw(st.sampled_from((torch.float16, torch.bfloat16)))
    masks = ("", "", "2", "3", "4", "head", "head one")
    mask = draw(st.sampled_from((*masks, *TREES) if tokens > 1 else masks))
    return IncreBatch(
        kv_lens=kv_lens,
        tokens=tokens,
        heads=(heads_kv * draw(st.sampled_from(groups)), heads_kv),
        head_dim=draw(st.sampled_from(head_dims)),
        dtype=dtype,
        layout=draw(st.sampled_from(LAYOUTS)),
        cache=cache if size > 1 or cache != LIST else DENSE,
        page_size=32 if quant is not None else draw(st.sampled_from((16, 32, 48))),
        spare=spare,
        lengths=lengths,
        left_padding=draw(st.sampled_from((3, 1, -2))) if is_padded else None,
        has_short_room=draw(st.booleans()),
        quant=quant,
        channel_rank=draw(st.integers(2, 4)),
        has_offset=draw(st.booleans()),
        mask=mask,
        mask_dtype=draw(st.sampled_from(MASK_DTYPES)),
        hides_all=draw(st.sampled_from((-1, -1, 0, size - 1))),
        bias=draw(st.sampled_from(("", "", "batch", "one", "tokens"))),
        prefix=draw(st.sampled_from((1, 5, 17))) if has_prefix else 0,
        output_quant=draw(st.sampled_from(("", "", "tensor", "channel"))),
        output_dtype=draw(st.sampled_from((torch.float32, dtype)))
        if dtype == torch.bfloat16
        else torch.float32,
        has_output_offset=draw(st.booleans()),
        has_sinks=draw(st.integers(0, 3)) == 0,
        seed=draw(st.integers(0, 2**16)),
        options=draw(_options(longest, may_be_mean=not has_prefix)),
    )


def _length_forms(cache: str) -> tuple[str, ...]:
    per_sequence = ("host", "long", "device", "device64")
    if cache == LIST:
        return per_sequence
    common = (*per_sequence, "one", "device one")
    return common if cache.startswith("PA") else (*common, "none")


@st.composite
def _options(draw: st.DrawFn, longest: int, *, may_be_mean: bool) -> dict[str, Any]:
    options: dict[str, Any] = {"inner_precise": draw(st.integers(0, 1))}
    if draw(st.booleans()):
        options["scale_value"] = draw(st.sampled_from((1.0, 0.3, 0.0, -0.25)))
    if draw(st.integers(0, 3)) == 0:
        options["softcap"] = draw(st.sampled_from((0.5, 5.0, 50.0)))
    if may_be_mean and draw(st.booleans()):
        options["masked_row"] = "mean"
    # a window over a shared prefix is not built, which excludes means as well
    if may_be_mean and draw(st.integers(0, 3)) == 0:
        options["win_left"] = draw(st.sampled_from((0, 1, longest // 2, 2**31)))
    options["return_softmax_lse"] = True
    if draw(st.booleans()):
        options["lse_includes_sink"] = True
    return options
