"""``flash_attn`` as an attention implementation of transformers.

::

    from fa_triton.integrations.transformers import register
    register()
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fa_triton")

Covers decoders: causal masks, padding on either side, sliding windows, grouped heads, attention
sinks, soft caps, head dims up to 256, dynamic and static caches. Bidirectional layers work without
padding. Everything else that a model may ask for is refused, never ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import causal_mask_function

from fa_triton.flash_attention import flash_attn, flash_attn_metadata
from fa_triton.integrations import mask_patterns
from fa_triton.integrations.packing import PackedBatch, cumulative, pack

# Arguments of a model's forward that reach the attention function and say nothing about it.
_HARMLESS = frozenset(
    {
        "cache",
        "cache_position",
        "deterministic",
        "logits_to_keep",
        "num_items_in_batch",
        "output_hidden_states",
        "output_router_logits",
        "past_key_values",
        "position_embeddings",
        "position_ids",
        "return_dict",
        "use_cache",
    }
)

# What the mask of the current step says, by the identity of the mask tensor (then by the query
# length): `real_keys` returns a new tensor at every step, and all layers of the step share it.
_steps: WeakTensorKeyDictionary = WeakTensorKeyDictionary()


def register(name: str = "fa_triton") -> None:
    """Make ``attn_implementation=name`` known to transformers.

    Registers the mask function too. Without one transformers passes no mask at all, and the padding
    of a batch is lost without a warning.

    Args:
        name: The name for ``attn_implementation``.
    """
    AttentionInterface.register(name, attention)
    AttentionMaskInterface.register(name, real_keys)


def real_keys(
    *,
    q_length: int,
    kv_length: int,
    batch_size: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., Any] = causal_mask_function,
    attention_mask: Tensor | None = None,
    local_size: int | None = None,
    device: torch.device | str | None = None,
    **_: Any,
) -> Tensor | None:
    """Describe the mask of one step; transformers calls it once per step and kind of layer.

    Args:
        q_length: Length of the query axis.
        kv_length: Length of the key axis; the capacity for a static cache.
        batch_size: Number of sequences.
        q_offset: Position of the first query.
        kv_offset: Position of the first key that the cache still holds.
        mask_function: The pattern as a function of indices.
        attention_mask: Real tokens so far ``[B, tokens]``, bool.
        local_size: Size of the sliding window.
        device: Where the model runs.

    Returns:
        Real keys ``[B, tokens held]``, bool, or None if every key is real. Its length says how
        much of a static cache is filled.

    Raises:
        ValueError: ``attention_mask`` does not cover the tokens.
        NotImplementedError: The pattern is neither causal nor a causal sliding window.
    """
    if not mask_patterns.is_causal(mask_function, local_size):
        unpadded = attention_mask is None or bool(attention_mask.all())
        if unpadded and mask_patterns.is_bidirectional(mask_function):
            return None
        raise NotImplementedError(
            "the mask must be causal or a causal sliding window (or bidirectional without "
            "padding), got another pattern: packed, chunked, blockwise or custom masks "
            'need attn_implementation="sdpa"'
        )
    tokens = int(q_offset) + q_length
    held = tokens - kv_offset
    if attention_mask is None:
        if kv_length <= held:
            return None
        return torch.ones(batch_size, held, dtype=torch.bool, device=device)
    # A mask that an earlier call cut is as long as the keys held; one made for the whole
    # capacity is longer than the tokens.
    if attention_mask.shape[1] != held:
        if attention_mask.shape[1] < tokens:
            raise ValueError(
                f"`attention_mask` must cover the {tokens} tokens so far, "
                f"got {tuple(attention_mask.shape)}"
            )
        return attention_mask[:, kv_offset:tokens]
    return attention_mask[:]


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    sliding_window: int | None = None,
    is_causal: bool | None = None,
    s_aux: Tensor | None = None,
    softcap: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Attend; the signature is that of transformers' attention functions.

    Args:
        module: The attention layer; ``module.is_causal`` counts where ``is_causal`` is None.
        query: Queries ``[B, Nq, Sq, D]``, any strides with a dense last dim.
        key: Keys ``[B, Nkv, Skv, D]``, heads not repeated.
        value: Values ``[B, Nkv, Skv, D]``.
        attention_mask: Real keys ``[B, tokens held]``, bool, as `real_keys` returns them.
        scaling: Multiplies q·k; 1/sqrt(D) if None.
        dropout: Must be 0.
        sliding_window: W: a query sees itself and the W - 1 tokens before it.
        is_causal: Overrides the layer's own flag.
        s_aux: Attention sinks ``[Nq]``, logits without a value.
        softcap: Bound of the logits, ``softcap * tanh(logit / softcap)``; None for none.
        **kwargs: Accepted if they cannot change the result, refused otherwise.

    Returns:
        ``(out, None)`` with out ``[B, Sq, Nq, D]`` contiguous, in query's dtype.

    Raises:
        ValueError: More queries than keys under a causal mask.
        NotImplementedError: The layer asks for something that is not built.
    """
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    _refuse_unbuilt(query, key, value, dropout, kwargs)
    q_length, kv_length = query.shape[2], key.shape[2]
    step = None
    if attention_mask is not None:
        step = _step(attention_mask, q_length, causal)
        kv_length = attention_mask.shape[1]
    options = {
        "softmax_scale": query.shape[-1] ** -0.5 if scaling is None else scaling,
        "sinks": None if s_aux is None else s_aux.float(),
        "softcap": softcap or 0.0,
    }
    mask = _mask_arguments(causal, sliding_window, q_length, kv_length)
    if step is None:
        out, _ = flash_attn(
            query,
            key[:, :, :kv_length],
            value[:, :, :kv_length],
            layout_q="BNSD",
            layout_kv="BNSD",
            layout_out="BSND",
            max_seqlen_q=q_length,
            max_seqlen_kv=kv_length,
            **mask,
            **options,
        )
        return out, None
    if sliding_window is not None and step.has_holes:
        raise NotImplementedError(
            "a sliding window needs padding at the ends of a sequence only, "
            "got a mask with padding between tokens"
        )
    return _attend_packed(step, query, key, value, mask, options), None


def _attend_packed(
    step: PackedBatch,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: dict[str, int],
    options: dict[str, Any],
) -> Tensor:
    """Attend over the real tokens only."""
    packed_query = step.gather_q(query)
    if packed_query.shape[0] == 0:
        return step.scatter_out(packed_query)
    shared = {
        "layout_q": "TND",
        "layout_kv": "TND",
        "layout_out": "TND",
        "max_seqlen_q": max(step.q_lens),
        "max_seqlen_kv": max(step.kv_lens),
        **mask,
    }
    # The plan is made from the lengths on the host, by the first layer of its kind: no other
    # layer of the step plans, and none reads lengths back from the device.
    heads = (query.shape[1], key.shape[1], query.shape[-1])
    kind = (*heads, *mask.items())
    if kind not in step.plans:
        step.plans[kind] = flash_attn_metadata(
            *heads,
            cu_seqlens_q=cumulative(step.q_lens),
            cu_seqlens_kv=cumulative(step.kv_lens),
            device=query.device,
            **shared,
        )
    out, _ = flash_attn(
        packed_query,
        step.gather_kv(key),
        step.gather_kv(value),
        cu_seqlens_q=step.cu_seqlens_q,
        cu_seqlens_kv=step.cu_seqlens_kv,
        metadata=step.plans[kind],
        **shared,
        **options,
    )
    return step.scatter_out(out)


def _step(mask: Tensor, q_length: int, causal: bool) -> PackedBatch | None:
    """Return where the real tokens lie; read once per step, not once per layer."""
    if mask.dim() != 2 or mask.dtype != torch.bool:
        raise NotImplementedError(
            f"`attention_mask` must be 2-D bool, got {mask.dim()}-D {mask.dtype}: a mask of your "
            'own needs attn_implementation="sdpa"'
        )
    if not causal:
        raise NotImplementedError("padding must come with a causal layer, got is_causal=False")
    steps = _steps.get(mask)
    if steps is None:
        steps = _steps[mask] = {}
    if q_length not in steps:
        steps[q_length] = pack(mask, q_length)
    return steps[q_length]


def _mask_arguments(
    causal: bool, sliding_window: int | None, q_length: int, kv_length: int
) -> dict[str, int]:
    """Express the layer's mask in the arguments of ``flash_attn``."""
    if not causal:
        if sliding_window is not None:
            raise NotImplementedError("`sliding_window` must come with a causal layer")
        return {"mask_mode": 0}
    if q_length > kv_length:
        raise ValueError(
            f"a causal layer must have at least as many keys as queries, "
            f"got {kv_length} keys and {q_length} queries"
        )
    if sliding_window is None or sliding_window >= kv_length:
        return {"mask_mode": 3}
    return {"mask_mode": 4, "win_left": sliding_window - 1, "win_right": 0}


def _refuse_unbuilt(
    query: Tensor, key: Tensor, value: Tensor, dropout: float, kwargs: dict[str, Any]
) -> None:
    """Refuse what would change the result, or would have to be differentiated."""
    if dropout > 0:
        raise NotImplementedError(f"`dropout` must be 0, got {dropout}: call model.eval()")
    for name, argument in kwargs.items():
        if name not in _HARMLESS and argument is not None and argument is not False:
            raise NotImplementedError(
                f"`{name}` must be None, got {type(argument).__name__}: fa_triton does not honour "
                'it, attn_implementation="sdpa" may'
            )
    if torch.is_grad_enabled() and any(t.requires_grad for t in (query, key, value)):
        raise NotImplementedError(
            "inputs must not require gradients, there is no backward pass: use torch.no_grad()"
        )
