"""``incre_flash_attention``: what it takes, returns and promises."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import cast

import torch

from fa_triton.incremental_attention.calls import attend_incremental
from fa_triton.incremental_problem import IncreOptions
from fa_triton.ops.incremental import call_operator
from fa_triton.ops.routing import goes_through_dispatcher


def incre_flash_attention(
    query: torch.Tensor,
    key: torch.Tensor | Sequence[torch.Tensor],
    value: torch.Tensor | Sequence[torch.Tensor],
    *,
    pse_shift: torch.Tensor | None = None,
    atten_mask: torch.Tensor | None = None,
    actual_seq_lengths: Sequence[int] | torch.Tensor | None = None,
    antiquant_scale: torch.Tensor | None = None,
    antiquant_offset: torch.Tensor | None = None,
    block_table: torch.Tensor | None = None,
    kv_padding_size: torch.Tensor | None = None,
    quant_scale2: torch.Tensor | None = None,
    quant_offset2: torch.Tensor | None = None,
    dequant_scale1: torch.Tensor | None = None,
    quant_scale1: torch.Tensor | None = None,
    dequant_scale2: torch.Tensor | None = None,
    num_heads: int = 1,
    scale_value: float = 1.0,
    input_layout: str = "BSH",
    num_key_value_heads: int = 0,
    block_size: int = 0,
    inner_precise: int = 1,
    antiquant_mode: str | None = None,
    masked_row: str = "zero",
    key_shared_prefix: torch.Tensor | None = None,
    value_shared_prefix: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    softcap: float = 0.0,
    win_left: int = -1,
    return_softmax_lse: bool = False,
    lse_includes_sink: bool = False,
    metadata: torch.Tensor | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Attention of few new query tokens over a cache of keys and values, forward only.

    B sequences, N query heads, Nkv key/value heads, head dim D, Sq query tokens, S keys, P pages.
    An empty tensor counts as None for every optional tensor.

    Args:
        query: Queries, fp16 or bf16, last axis dense: BSH ``[B, Sq, N*D]``, BSND ``[B, Sq, N, D]``
            or BNSD ``[B, N, Sq, D]``. Sq is 1 to 16; several tokens are the last of the sequence
            and causal among themselves. D is a multiple of 16 up to 512.
        key: Keys, dtype of the query or int8: in ``input_layout`` with S and Nkv; or a list of B
            tensors with batch size 1, an S each, 0 among them, and one stride from token to token;
            or, with ``block_table``, pages whose layout the rank tells: ``[P, page, Nkv*D]``, ``[P,
            Nkv, page, D]``, ``[P, Nkv, D/16, page, 16]``, a page being a multiple of 16 tokens
            (int8: 32) up to 1024. All strides but the last are free.
        value: Values, shape and dtype of the keys.
        pse_shift: Bias, dtype of the query, ``[B, N, 1, S']`` or ``[1, N, 1, S']``, S' >= S, or
            with Sq rows instead of 1; added to the logits after scale and soft cap.
        atten_mask: bool, int8 or uint8, nonzero where a key is hidden: per sequence ``[B, S']``,
            ``[B, 1, S']``, ``[B, 1, 1, S']``; per head ``[B, N, 1, S']``, ``[1, N, 1, S']``; per
            query token with Sq rows instead of the last 1, B or 1 sequences and N or 1 heads, which
            then also says what the tokens see of each other (a tree). S' is at least the longest
            sequence.
        actual_seq_lengths: Keys of each sequence: host ints, or int32 or int64 on the device, one
            for all or at least B; 0 allowed. None is S. Needed with pages and left padding.
        antiquant_scale: Scales of an int8 cache, ``[0]`` of the keys and ``[1]`` of the values:
            ``(k + offset) * scale``. Shapes at ``antiquant_mode``.
        antiquant_offset: Offsets, shape and dtype of the scales; None is 0.
        block_table: Page ids ``[B, pages]``, int32; entries behind the last used page of a sequence
            are never followed.
        kv_padding_size: Left padding, int64 ``[1]`` on the device: the keys of a sequence lie in
            columns ``S - max(padding, 0) - length`` on; where that is negative it has none. Masks,
            biases and scales per token are read at the same columns.
        quant_scale2: fp32, or bf16 with bf16 queries; 1 or N*D elements. The result is int8,
            ``round(out * scale + offset)``, half to even, saturated.
        quant_offset2: As the scale; None is 0.
        dequant_scale1: Must be None: only int8 queries, which are not supported, have it.
        quant_scale1: Likewise.
        dequant_scale2: Likewise.
        num_heads: N.
        scale_value: Multiplies q·k; natural-log logits. The default is 1.0, not ``D**-0.5``.
        input_layout: BSH, BSND or BNSD.
        num_key_value_heads: Nkv, a divisor of N, at least N / 64; 0 for N.
        block_size: Tokens of a page, or 0: the cache's shape says it.
        inner_precise: 0 or 1, which are the same here.
        antiquant_mode: ``per_tensor`` ``[2]``; ``per_channel`` ``[2, Nkv, 1, D]``, ``[2, Nkv, D]``
            or ``[2, Nkv*D]``, both in the query's dtype; ``per_token`` ``[2, B, S']`` or pages
            ``[2, P, page]``; ``per_token_head`` ``[2, B, Nkv, S']`` or ``[2, P, Nkv, page]``, both
            fp32. None where only one of them fits the shape.
        masked_row: What a row is whose every key ``atten_mask`` hides: ``zero``, or ``mean`` for
            the mean of the values that position alone would show, which is CANN's result.
        key_shared_prefix: Keys ``[1, Nkv, Sp, D]`` before the own ones of every sequence, in the
            dtype of the keys; columns of mask and bias span both.
        value_shared_prefix: Values of that prefix.
        sinks: One logit per query head ``[N]``, fp32, that joins the denominator.
        softcap: Bound of the logits by ``softcap * tanh(logit / softcap)``, 0 for none.
        win_left: Visible keys left of a query token's own position, -1 unlimited.
        return_softmax_lse: Whether the log-sum-exp is returned too.
        lse_includes_sink: Whether the log-sum-exp counts the sinks.
        metadata: Table of ``flash_attn_metadata`` for these lengths or longer ones (these alone,
            where ``section_stream_k`` planned a window), which all layers share; None plans inside
            the call.

    Returns:
        The result in the shape of the query and its dtype, or int8 with ``quant_scale2``. With
        ``return_softmax_lse`` also the log-sum-exp ``[B, N, Sq]``, fp32, natural log. A row
        without a visible key is 0, quantised like any other, and +inf.

    Raises:
        ValueError: A shape or value out of its range; arguments that exclude each other.
        TypeError: A dtype or type out of its set; None for an operand.
        NotImplementedError: An int8 query, an int4 cache, a window over a shared prefix, a tensor
            that requires a gradient.

    Notes:
        Nothing is mutated. Equal calls are validated once. ``FA_TRITON_CHECK_VALUES=1`` checks
        lengths, page ids, scales and tables on the device, with a sync; without it lengths there
        are cut to the room of the cache. Under ``torch.compile`` and on fake or meta tensors it is
        ``torch.ops.fa_triton.incre_flash_attention`` (``docs/torch.md``). Keys past the actual
        length, pages that no sequence uses and columns of them are never read. Host sync: none but
        to read the header of a copied table after a write to it. Lengths, padding and page ids on a
        device are read by the kernels. Bitwise reproducible for one plan. On A2 and A3 pages of
        fractals (rank 5) take memory for a copy of those in use (``docs/flash_attn.md``).
        Source: CANN ``IncreFlashAttention`` V1 to V4, torch_npu ``npu_incre_flash_attention``;
        ``docs/incre_flash_attention.md`` maps their arguments and tells where this goes further.
    """
    options: IncreOptions = {
        "pse_shift": pse_shift,
        "atten_mask": atten_mask,
        "actual_seq_lengths": actual_seq_lengths,
        "antiquant_scale": antiquant_scale,
        "antiquant_offset": antiquant_offset,
        "block_table": block_table,
        "kv_padding_size": kv_padding_size,
        "quant_scale2": quant_scale2,
        "quant_offset2": quant_offset2,
        "dequant_scale1": dequant_scale1,
        "quant_scale1": quant_scale1,
        "dequant_scale2": dequant_scale2,
        "num_heads": num_heads,
        "scale_value": scale_value,
        "input_layout": input_layout,
        "num_key_value_heads": num_key_value_heads,
        "block_size": block_size,
        "inner_precise": inner_precise,
        "antiquant_mode": antiquant_mode,
        "masked_row": masked_row,
        "key_shared_prefix": key_shared_prefix,
        "value_shared_prefix": value_shared_prefix,
        "sinks": sinks,
        "softcap": softcap,
        "win_left": win_left,
        "return_softmax_lse": return_softmax_lse,
        "lse_includes_sink": lse_includes_sink,
        "metadata": metadata,
    }
    if goes_through_dispatcher(
        query,
        *(key if isinstance(key, (list, tuple)) else (key,)),
        *(value if isinstance(value, (list, tuple)) else (value,)),
        *options.values(),
    ):
        out, lse = call_operator(query, key, value, options)
        return (out, lse) if return_softmax_lse else out
    # what a call leaves out need not be looked at to find that it is known
    given = {name: each for name, each in options.items() if each is not _DEFAULTS[name]}
    out, lse = attend_incremental(query, key, value, **cast("IncreOptions", given))
    return out if lse is None else (out, lse)


_DEFAULTS = {
    name: parameter.default
    for name, parameter in inspect.signature(incre_flash_attention).parameters.items()
}
