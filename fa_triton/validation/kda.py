"""The contract of the chunked forward and of the cumulative gate: arguments in, problem out."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fa_triton.delta_rule.layouts import kda_extents
from fa_triton.delta_rule.problem import RESULT_NAMES, ChunkKdaProblem
from fa_triton.delta_rule.shapes import state_shape
from fa_triton.validation.delta_rule import (
    DeltaRuleSizes,
    GateOptions,
    check_beta_options,
    check_delta_rule_inputs,
    check_gate_options,
    check_gate_tensor,
    check_kda_dim,
    check_kda_heads,
    check_layout,
    check_scale,
)
from fa_triton.validation.scalars import MAX_INT32, as_flag, as_int
from fa_triton.validation.tensors import (
    INDEX_DTYPES,
    check_device,
    check_index_tensor,
    check_is_tensor,
    check_small_tensor,
    refuse_gradient,
)

CHUNK_SIZES = (16, 32, 64, 128)
POOL_DTYPES = (torch.float32, torch.bfloat16, torch.float16)


def validate_chunk_kda(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    results: tuple[str, ...],
    scale: float | None = None,
    chunk_size: int = 64,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    chunk_indices: torch.Tensor | Sequence[object] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    state_v_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    ssm_state_indices: torch.Tensor | None = None,
    has_initial_state: torch.Tensor | None = None,
) -> ChunkKdaProblem:
    """Check every argument without reading a device.

    The values of lengths and chunk indices are checked where they are read, by
    ``delta_rule.tables``. Arguments as of :func:`fa_triton.chunk_kda_fwd`; ``results`` names what
    is returned.

    Raises:
        ValueError: A shape or value out of its range.
        TypeError: A dtype or type out of its set.
        NotImplementedError: A tensor that requires a gradient.
    """
    layout = check_layout(layout)
    sizes = check_delta_rule_inputs(q, k, v, g, beta, layout)
    gate = check_gate_options(
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        num_v_heads=sizes.num_v_heads,
        key_dim=sizes.key_dim,
        device=sizes.device,
    )
    has_sigmoid, beta_scale = check_beta_options(use_beta_sigmoid_in_kernel, allow_neg_eigval)
    num_sequences = check_lengths_form(cu_seqlens, chunk_indices, sizes.batch_size, sizes.device)
    v_first = as_flag("state_v_first", state_v_first)
    state_dtype = _check_states(
        initial_state,
        ssm_state_indices,
        has_initial_state,
        state_shape(sizes.num_v_heads, sizes.key_dim, sizes.value_dim, is_v_first=v_first),
        num_sequences,
        sizes.device,
        is_v_first=v_first,
    )
    return ChunkKdaProblem(
        layout=layout,
        sizes=sizes,
        gate=gate,
        has_beta_sigmoid=has_sigmoid,
        beta_scale=beta_scale,
        chunk_size=check_chunk_size(chunk_size),
        num_sequences=num_sequences,
        is_packed=cu_seqlens is not None,
        scale=check_scale(scale, sizes.key_dim),
        state_v_first=v_first,
        has_qk_norm=as_flag("use_qk_l2norm_in_kernel", use_qk_l2norm_in_kernel),
        has_initial_state=initial_state is not None,
        has_state_indices=ssm_state_indices is not None,
        has_state_mask=has_initial_state is not None,
        state_dtype=state_dtype,
        results=results,
    )


def validate_gate_cumsum(
    g: torch.Tensor,
    *,
    chunk_size: int,
    layout: str = "BNSD",
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    use_gate_in_kernel: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
) -> tuple[DeltaRuleSizes, GateOptions]:
    """Check the arguments of :func:`fa_triton.kda_gate_cumsum`.

    Returns:
        Sizes of g, of which one head serves as q/k head and K as V, and how it is activated.
    """
    tensor = check_gate_tensor("g", g, check_layout(layout))
    extents = kda_extents(tensor, layout)
    check_kda_heads(extents.heads, extents.heads)
    check_kda_dim("g", extents.head_dim)
    gate = check_gate_options(
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        A_log=A_log,
        dt_bias=dt_bias,
        num_v_heads=extents.heads,
        key_dim=extents.head_dim,
        device=tensor.device,
    )
    check_chunk_size(chunk_size)
    check_lengths_form(cu_seqlens, None, extents.outer, tensor.device)
    sizes = DeltaRuleSizes(
        batch_size=extents.outer,
        num_tokens=extents.tokens,
        num_heads=extents.heads,
        num_v_heads=extents.heads,
        key_dim=extents.head_dim,
        value_dim=extents.head_dim,
        dtype=tensor.dtype,
        gate_dtype=tensor.dtype,
        beta_dtype=tensor.dtype,
        device=tensor.device,
    )
    return sizes, gate


def check_chunk_size(chunk_size: object) -> int:
    """Return the tokens of a chunk."""
    size = as_int("chunk_size", chunk_size)
    if size not in CHUNK_SIZES:
        raise ValueError(f"`chunk_size` must be one of {CHUNK_SIZES}, got {size}")
    return size


def chosen_results(
    outputs: Sequence[str] | None,
    *,
    output_final_state: bool,
    use_gate_in_kernel: bool,
    disable_recompute: bool,
    return_intermediate_states: bool,
) -> tuple[str, ...]:
    """Return the names of the results that are asked for, in the order of the operator."""
    everything = as_flag("disable_recompute", disable_recompute)
    wanted = {
        "final_state": as_flag("output_final_state", output_final_state),
        "gk": everything or not as_flag("use_gate_in_kernel", use_gate_in_kernel),
        "h": everything or as_flag("return_intermediate_states", return_intermediate_states),
    }
    if outputs is not None:
        asked = _named_results(outputs)
        return tuple(name for name in RESULT_NAMES if name in asked)
    always = ("attn_out", "Aqk", "Akk")
    return tuple(name for name in RESULT_NAMES if name in always or wanted.get(name, everything))


def _named_results(outputs: Sequence[str]) -> list[str]:
    if isinstance(outputs, str) or not isinstance(outputs, Sequence):
        raise TypeError(f"`outputs` must be a sequence of names, got {outputs!r}")
    for name in outputs:
        if name not in RESULT_NAMES:
            raise ValueError(
                f"`outputs` must hold names among {', '.join(RESULT_NAMES)}, got {name!r}"
            )
    return list(outputs)


def check_lengths_form(
    cu_seqlens: object, chunk_indices: object, batch_size: int, device: torch.device
) -> int:
    """Check lengths without reading a device; return the number of sequences."""
    if cu_seqlens is None:
        if chunk_indices is not None:
            raise ValueError(
                "`chunk_indices` must be None without cu_seqlens, got a value; dense sequences "
                "have their chunks one after the other"
            )
        return batch_size
    if batch_size != 1:
        raise ValueError(
            f"the batch axis must be 1 with cu_seqlens (packed sequences), got {batch_size}"
        )
    size = _check_indices("cu_seqlens", cu_seqlens, device)
    if size < 2:
        raise ValueError(f"`cu_seqlens` must have N + 1 elements, two at least, got {size}")
    if chunk_indices is not None and _check_indices("chunk_indices", chunk_indices, device) % 2:
        raise ValueError("`chunk_indices` must hold pairs (sequence, chunk), got an odd number")
    return size - 1


def _check_indices(name: str, value: object, device: torch.device) -> int:
    """Check a tensor or host list of integers; return its number of elements."""
    if not isinstance(value, torch.Tensor):
        if isinstance(value, (str, bytes)) or not isinstance(value, Sequence):
            raise TypeError(
                f"`{name}` must be a tensor or a list of integers, got {type(value).__name__}"
            )
        return _count_listed(name, value)
    tensor = check_is_tensor(name, value)
    if tensor.dtype not in INDEX_DTYPES:
        raise TypeError(f"`{name}` must have dtype int64 or int32, got {tensor.dtype}")
    ranks = (1,) if name == "cu_seqlens" else (1, 2)
    pairs = tensor.ndim < 2 or tensor.shape[1] == 2
    if tensor.ndim not in ranks or not pairs:
        meaning = "(N + 1,)" if name == "cu_seqlens" else "(2 * Nc,) or (Nc, 2)"
        raise ValueError(f"`{name}` must have shape {meaning}, got {tuple(tensor.shape)}")
    if tensor.device.type != "cpu":
        check_device(name, tensor, device)
    return tensor.numel()


def _count_listed(name: str, values: Sequence[object]) -> int:
    """Check a host list of integers, or of pairs of them for chunks; return how many there are."""
    pairs = [pair for pair in values if isinstance(pair, (list, tuple)) and len(pair) == 2]
    are_pairs = name == "chunk_indices" and len(pairs) == len(values)
    numbers = [number for pair in pairs for number in pair] if are_pairs else values
    for position, number in enumerate(numbers):
        as_int(f"{name}[{position}]", number, minimum=-MAX_INT32, maximum=MAX_INT32)
    return len(numbers)


def _check_states(
    initial_state: torch.Tensor | None,
    state_indices: object,
    has_initial_state: object,
    shape: tuple[int, ...],
    num_sequences: int,
    device: torch.device,
    *,
    is_v_first: bool,
) -> torch.dtype:
    """Check initial states, or a pool of them; return the dtype of final states."""
    order = "[V, K]" if is_v_first else "[K, V]"
    if state_indices is None:
        if initial_state is not None:
            check_small_tensor(
                "initial_state",
                initial_state,
                dtype=torch.float32,
                shape=(num_sequences, *shape),
                device=device,
                meaning=f"{(num_sequences, *shape)}, states {order} of every sequence",
            )
            refuse_gradient("initial_state", initial_state)
        if has_initial_state is not None and initial_state is None:
            raise ValueError("`has_initial_state` must be None without initial_state, got a tensor")
    else:
        _check_pool(initial_state, shape, device, order)
        check_index_tensor(
            "ssm_state_indices",
            state_indices,
            shape=(num_sequences,),
            device=device,
            meaning=f"({num_sequences},), one slot per sequence",
        )
    if has_initial_state is not None:
        check_small_tensor(
            "has_initial_state",
            has_initial_state,
            dtype=torch.bool,
            shape=(num_sequences,),
            device=device,
            meaning=f"({num_sequences},), one per sequence",
        )
    return torch.float32 if initial_state is None else initial_state.dtype


def _check_pool(pool: object, shape: tuple[int, ...], device: torch.device, order: str) -> None:
    """A pool of states, dense but for the stride from slot to slot."""
    if pool is None:
        raise ValueError(
            "`initial_state` must be the pool of states with ssm_state_indices, got None"
        )
    tensor = check_is_tensor("initial_state", pool)
    if tensor.dtype not in POOL_DTYPES:
        raise TypeError(
            f"`initial_state` must have dtype float32, bfloat16 or float16 as a pool, got "
            f"{tensor.dtype}"
        )
    if tensor.ndim != 4 or tuple(tensor.shape[1:]) != shape or not tensor.shape[0]:
        raise ValueError(
            f"`initial_state` must have shape (slots, {', '.join(map(str, shape))}), states "
            f"{order}, got {tuple(tensor.shape)}"
        )
    if not tensor[0].is_contiguous():
        raise ValueError(
            f"`initial_state` must be dense within a slot, got strides {tuple(tensor.stride())}"
        )
    if tensor.stride(0) < 1 and tensor.shape[0] > 1:
        raise ValueError(
            f"`initial_state` must keep its slots apart, got strides {tuple(tensor.stride())}"
        )
    refuse_gradient("initial_state", tensor)
    check_device("initial_state", tensor, device)
