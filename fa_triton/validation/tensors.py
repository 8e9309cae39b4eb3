"""Checks of the tensors q, k and v, and of small tensors beside them."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fa_triton.layout import FRACTAL, LAYOUT_SHAPES, LAYOUTS, Extents, extents

FLOAT_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
INDEX_DTYPES = (torch.int32, torch.int64)
# Rows of the largest tile; a kernel counts offsets inside a tile in 32 bits.
MAX_TILE_ROWS = 512


def check_is_tensor(name: str, value: object) -> torch.Tensor:
    """Refuse what is not a plain strided tensor."""
    if not isinstance(value, torch.Tensor):
        raise TypeError(f"`{name}` must be a torch.Tensor, got {type(value).__name__}")
    if value.is_nested:
        raise ValueError(
            f"`{name}` must be a strided tensor, got a nested one; pack it as TND with cu_seqlens"
        )
    if value.layout != torch.strided:
        raise ValueError(f"`{name}` must be a strided tensor, got layout {value.layout}")
    if value.is_neg():
        raise ValueError(
            f"`{name}` must hold its values in memory, got a view that negates them lazily; "
            f"pass {name}.resolve_neg()"
        )
    return value


def check_has_memory(name: str, tensor: torch.Tensor) -> None:
    """Refuse a tensor without memory of its own, of which a kernel would read address 0."""
    try:
        has_memory = tensor.data_ptr() != 0
    except RuntimeError:
        has_memory = False
    if not has_memory:
        raise NotImplementedError(
            f"`{name}` must have memory, got a {type(tensor).__name__} without; pass the tensor "
            "that it stands for"
        )


def check_operand(name: str, value: object, layout: str) -> Extents:
    """Check one of q, k, v on its own: kind, dtype, rank, axes, strides, no gradient."""
    tensor = check_operand_form(name, value, layout)
    shape = tuple(tensor.shape)
    if 0 in shape:
        raise ValueError(f"`{name}` must have no empty axis, got shape {shape}")
    if layout == "PA_NZ" and shape[-1] != FRACTAL:
        raise ValueError(
            f"`{name}` must have a last axis of {FRACTAL} in layout PA_NZ, got shape {shape}"
        )
    check_dense_last_axis(name, tensor)
    sizes = extents(tensor, layout)
    check_reach(name, tensor.stride(LAYOUTS[layout].token), sizes.tokens)
    return sizes


def check_operand_form(name: str, value: object, layout: str) -> torch.Tensor:
    """Check what does not depend on sizes: kind, dtype, rank, no gradient."""
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in FLOAT_DTYPES:
        allowed = ", ".join(str(dtype).removeprefix("torch.") for dtype in FLOAT_DTYPES)
        raise TypeError(f"`{name}` must have dtype {allowed}, got {tensor.dtype}")
    axes = LAYOUTS[layout]
    if tensor.ndim != axes.rank:
        raise ValueError(
            f"`{name}` must have {axes.rank} axes {LAYOUT_SHAPES[layout]} in layout {layout}, "
            f"got shape {tuple(tensor.shape)}"
        )
    refuse_gradient(name, tensor)
    return tensor


def refuse_gradient(name: str, tensor: torch.Tensor, *, subject: str = "attention") -> None:
    """Refuse a tensor whose gradient autograd would miss; ``subject`` is what has no backward."""
    if tensor.requires_grad and torch.is_grad_enabled():
        raise NotImplementedError(
            f"{subject} is forward only: `{name}` must not require a gradient, got "
            f"requires_grad=True; call it under torch.no_grad() or pass {name}.detach()"
        )


def check_dense_last_axis(name: str, tensor: torch.Tensor) -> None:
    """Elements of the last axis lie side by side; the other strides are free."""
    if tensor.stride(-1) != 1 and tensor.shape[-1] > 1:
        raise ValueError(
            f"`{name}` must be dense in its last axis (stride 1), got strides "
            f"{tuple(tensor.stride())}; call {name}.contiguous()"
        )


def check_reach(name: str, stride: int, tokens: int) -> None:
    """Tokens of a tile lie within 2^31 elements; a stride that is larger itself takes 64 bits."""
    if stride < 2**31 <= (min(tokens, MAX_TILE_ROWS) - 1) * stride:
        raise ValueError(
            f"`{name}` must keep {MAX_TILE_ROWS} tokens within 2^31 elements, got a stride of "
            f"{stride} from one token to the next; call {name}.contiguous()"
        )


def check_operands_agree(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    q_extents: Extents,
    k_extents: Extents,
    v_extents: Extents,
) -> None:
    """Check q, k and v against each other."""
    check_forms_agree(q, k, v)
    if k_extents.head_dim != q_extents.head_dim:
        raise ValueError(
            f"`k` must have the head dim of q, {q_extents.head_dim}, got {k_extents.head_dim}"
        )
    k_rest = (k_extents.outer, k_extents.tokens, k_extents.heads)
    v_rest = (v_extents.outer, v_extents.tokens, v_extents.heads)
    if k_rest != v_rest:
        raise ValueError(
            f"`v` must agree with k in every axis but the head dim, got k {tuple(k.shape)} and "
            f"v {tuple(v.shape)}"
        )
    for name, head_dim in (("q", q_extents.head_dim), ("v", v_extents.head_dim)):
        check_head_dim(f"the head dim of {name}", head_dim)
    check_heads("the number of heads of q", q_extents.heads, k_extents.heads)


def check_forms_agree(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Check q, k and v against each other in what does not depend on sizes."""
    for name, tensor in (("k", k), ("v", v)):
        if tensor.dtype != q.dtype:
            raise TypeError(f"`{name}` must have the dtype of q, {q.dtype}, got {tensor.dtype}")
        check_device(name, tensor, q.device)


def check_head_dim(subject: str, head_dim: int, *, step: int = 8, maximum: int = 256) -> None:
    """Head dims are multiples of ``step`` up to ``maximum``."""
    if not step <= head_dim <= maximum or head_dim % step:
        raise ValueError(
            f"{subject} must be a multiple of {step} from {step} to {maximum}, got {head_dim}"
        )


def check_heads(subject: str, num_heads_q: int, num_heads_kv: int) -> None:
    """Every key/value head serves the same number of query heads."""
    if num_heads_q % num_heads_kv:
        raise ValueError(
            f"{subject} must be a multiple of the key/value heads, got {num_heads_q} and "
            f"{num_heads_kv}"
        )


def check_batch_size(subject: str, batch_size: int, *, maximum: int = 65535) -> None:
    """CANN's limits: 65535 sequences of ``flash_attn``, one more of the incremental operator."""
    if not 0 < batch_size <= maximum:
        raise ValueError(f"{subject} must lie between 1 and {maximum}, got {batch_size}")


def check_device(name: str, tensor: torch.Tensor, device: torch.device, *, like: str = "q") -> None:
    """All tensors of a call lie on one device."""
    if tensor.device != device:
        raise ValueError(f"`{name}` must be on {device} like {like}, got {tensor.device}")


def check_index_tensor(
    name: str,
    value: object,
    *,
    shape: Sequence[int | None],
    device: torch.device,
    meaning: str,
    like: str = "q",
) -> torch.Tensor:
    """Check a tensor of int32 or int64 that a kernel follows; its values stay unread.

    Args:
        name: Of the argument.
        value: The argument.
        shape: It must have; None allows any positive size.
        device: It must be on.
        meaning: The shape in words.
        like: The argument that sets the device.
    """
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in INDEX_DTYPES:
        raise TypeError(f"`{name}` must have dtype int32 or int64, got {tensor.dtype}")
    got = tuple(tensor.shape)
    if len(got) != len(shape) or any(
        size < 1 if wanted is None else size != wanted
        for size, wanted in zip(got, shape, strict=True)
    ):
        raise ValueError(f"`{name}` must have shape {meaning}, got {got}")
    check_device(name, tensor, device, like=like)
    return tensor


def check_small_tensor(
    name: str,
    value: object,
    *,
    dtype: torch.dtype,
    shape: Sequence[int | None],
    device: torch.device | None,
    meaning: str,
    rows_apart: bool = False,
) -> torch.Tensor:
    """Check a tensor beside q, k and v.

    Args:
        name: Of the argument.
        value: The argument.
        dtype: It must have.
        shape: It must have; None allows any positive size.
        device: It must be on; None allows any.
        meaning: The shape in words.
        rows_apart: Whether gaps between its rows are fine, as in a cut-out of a wider matrix.
    """
    tensor = check_is_tensor(name, value)
    if tensor.dtype != dtype:
        raise TypeError(f"`{name}` must have dtype {dtype}, got {tensor.dtype}")
    got = tuple(tensor.shape)
    fits = len(got) == len(shape) and all(
        size > 0 if wanted is None else size == wanted
        for size, wanted in zip(got, shape, strict=True)
    )
    if not fits:
        raise ValueError(f"`{name}` must have shape {meaning}, got {got}")
    if rows_apart:
        check_dense_last_axis(name, tensor)
    elif not tensor.is_contiguous():
        raise ValueError(
            f"`{name}` must be contiguous, got strides {tuple(tensor.stride())}; "
            f"call {name}.contiguous()"
        )
    if device is not None:
        check_device(name, tensor, device)
    return tensor
