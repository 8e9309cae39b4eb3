"""Eager Kimi Delta Attention in float64: the oracle of the tests.

Two computations that share nothing but the gate and the reading of layouts:

* :func:`kda_recurrent_reference` applies the definition token by token;
* :func:`chunk_kda_reference` takes the chunked form and returns all twelve results of
  ``chunk_kda_fwd``. Unlike the kernels it solves a triangular system by LAPACK, handles all chunks
  of a group at once and has no tiles. With ``emulate`` it rounds what the kernels must store
  between their phases and what a product of 16-bit operands reads, nothing else: the yardstick
  of the error budget.

No exponent above 0 is ever evaluated (gates are never positive), so decay of any strength is exact.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fa_triton.delta_rule.layouts import PACKED_LAYOUTS
from fa_triton.delta_rule.outputs import ChunkKdaOutputs
from fa_triton.delta_rule.reference_steps import (
    LN2,
    Chunks,
    DeltaRuleRows,
    Stored,
    across_chunks,
    batch_first,
    head_major,
    sequences_of,
    within_chunks,
)

DEFAULT_LOWER_BOUND = -5.0
L2NORM_EPSILON = 1e-6


def kda_gate_reference(
    g: torch.Tensor,
    *,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    use_gate_in_kernel: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Activate the gate: the logarithm of what one token keeps of the state.

    Args:
        g: Gate ``[..., HV, K]``: raw with ``use_gate_in_kernel``, else the logarithm itself.
        A_log: Logarithm of the rate of each head ``[HV]``.
        dt_bias: Added to the raw gate ``[HV * K]``.
        use_gate_in_kernel: Whether g is raw.
        safe_gate: Bounded gate ``lower_bound * sigmoid(exp(A_log) x)`` instead of
            ``-exp(A_log) * softplus(x)``.
        lower_bound: Smallest value of the bounded gate; None is -5.
        compute_dtype: Dtype of all arithmetic and of the result.

    Returns:
        ``[..., HV, K]``, natural logarithm, at most 0.
    """
    x = g.to(compute_dtype)
    if not use_gate_in_kernel:
        return x
    if A_log is None:
        raise ValueError("`A_log` must be given with use_gate_in_kernel=True, got None")
    num_heads, head_dim = x.shape[-2:]
    if dt_bias is not None:
        x = x + dt_bias.to(compute_dtype).reshape(num_heads, head_dim)
    rate = A_log.to(compute_dtype).reshape(num_heads, 1).exp()
    if safe_gate:
        bound = DEFAULT_LOWER_BOUND if lower_bound is None else lower_bound
        return bound * torch.sigmoid(rate * x)
    # torch's softplus is the identity above 20.
    return -rate * (x.clamp(min=0) + torch.log1p(torch.exp(-x.abs())))


def kda_gate_cumsum_reference(
    g: torch.Tensor,
    chunk_size: int,
    *,
    layout: str = "BNSD",
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    use_gate_in_kernel: bool = False,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    compute_dtype: torch.dtype = torch.float64,
) -> torch.Tensor:
    """Sum the gates of each chunk, with the arguments of ``kda_gate_cumsum``.

    Returns:
        ``[B, HV, T, K]``, without B for packed layouts, in ``compute_dtype``; log2.
    """
    a = kda_gate_reference(
        batch_first(g, layout),
        A_log=A_log,
        dt_bias=dt_bias,
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        compute_dtype=compute_dtype,
    )
    batch, tokens = a.shape[:2]
    chunks = Chunks.of(batch, tokens, chunk_size, cu_seqlens, a.device)
    gk = chunks.cut(a).cumsum(2) / LN2
    return head_major(chunks, gk, batch, layout)


def kda_recurrent_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    *,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    state_v_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Apply the delta rule token by token in float64.

    ``S <- diag(e^a) S``, then ``S <- S + beta k (v - S^T k)^T``, then ``o = scale S^T q``.

    Args:
        q: Queries in ``layout``, H heads of size K.
        k: Keys, shape of q.
        v: Values in ``layout``, HV heads of size V; head hv reads q and k of head
            ``hv // (HV // H)``.
        g: Gates in ``layout``, HV heads of size K; see :func:`kda_gate_reference`.
        beta: Step sizes, shape of v without the head dim.
        scale: Multiplies the result.
        layout: BSND, BNSD, TND or NTD.
        initial_state: ``[N, HV, K, V]``, or ``[N, HV, V, K]`` with ``state_v_first``; None is zero.
        cu_seqlens: Starts of packed sequences ``[N + 1]``.
        safe_gate: See :func:`kda_gate_reference`.
        lower_bound: See :func:`kda_gate_reference`.
        use_gate_in_kernel: See :func:`kda_gate_reference`.
        A_log: See :func:`kda_gate_reference`.
        dt_bias: See :func:`kda_gate_reference`.
        state_v_first: Whether states are stored ``[V, K]``.
        use_qk_l2norm_in_kernel: Divide q and k by ``sqrt(sum of squares + 1e-6)``.
        use_beta_sigmoid_in_kernel: Whether beta is raw and passes through a sigmoid.
        allow_neg_eigval: Whether beta after its sigmoid is doubled.

    Returns:
        attn_out ``[B, T, HV, V]``, without B for packed layouts, and the states after the
        sequences, both float64 on the device of q. An empty sequence keeps its initial state.

    Notes: Reads ``cu_seqlens`` on the host.
    """
    rows = _read_inputs(
        q,
        k,
        v,
        g,
        beta,
        layout=layout,
        A_log=A_log,
        dt_bias=dt_bias,
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        compute_dtype=torch.float64,
    )
    batch, tokens, num_heads, head_dim_v = rows.v.shape
    starts, lengths = sequences_of(batch, tokens, cu_seqlens)
    group = num_heads // rows.q.shape[2]
    all_q, all_k = (x.flatten(0, 1).repeat_interleave(group, 1) for x in (rows.q, rows.k))
    all_v, keep, all_beta = (x.flatten(0, 1) for x in (rows.v, rows.a.exp(), rows.beta))
    state = _states(rows, len(lengths), initial_state, state_v_first)
    out = torch.zeros_like(all_v)
    for step in range(max(lengths, default=0)):
        running = torch.tensor([n for n, length in enumerate(lengths) if length > step])
        i_t = torch.tensor(starts)[running] + step
        s = state[running] * keep[i_t][..., None]
        b_k = all_k[i_t][..., None]
        seen = (s * b_k).sum(-2)
        s = s + all_beta[i_t][..., None, None] * b_k * (all_v[i_t] - seen)[..., None, :]
        out[i_t] = scale * (s * all_q[i_t][..., None]).sum(-2)
        state[running] = s
    out = out.reshape(batch, tokens, num_heads, head_dim_v)
    if state_v_first:
        state = state.mT.contiguous()
    return (out[0] if layout in PACKED_LAYOUTS else out).to(q.device), state.to(q.device)


def chunk_kda_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float,
    chunk_size: int,
    *,
    layout: str = "BSND",
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | Sequence[int] | None = None,
    chunk_indices: torch.Tensor | Sequence[int] | Sequence[Sequence[int]] | None = None,
    safe_gate: bool = False,
    lower_bound: float | None = None,
    use_gate_in_kernel: bool = False,
    A_log: torch.Tensor | None = None,
    dt_bias: torch.Tensor | None = None,
    disable_recompute: bool = False,
    return_intermediate_states: bool = False,
    state_v_first: bool = False,
    use_qk_l2norm_in_kernel: bool = False,
    use_beta_sigmoid_in_kernel: bool = False,
    allow_neg_eigval: bool = False,
    outputs: Sequence[str] | None = None,
    compute_dtype: torch.dtype = torch.float64,
    out_dtype: torch.dtype | None = None,
    emulate: torch.dtype | None = None,
) -> ChunkKdaOutputs:
    """Run the chunked form, with the arguments and results of ``chunk_kda_fwd``.

    Args:
        q: As ``chunk_kda_fwd``, like all arguments up to ``outputs``; none is checked here.
        k: Keys.
        v: Values.
        g: Gates.
        beta: Step sizes.
        scale: Multiplies the result.
        chunk_size: Tokens of a chunk.
        layout: BSND, BNSD, TND or NTD.
        initial_state: States before the sequences.
        output_final_state: Whether the states after the sequences are wanted.
        cu_seqlens: Starts of packed sequences.
        chunk_indices: Not used: it says nothing that ``cu_seqlens`` does not.
        safe_gate: See :func:`kda_gate_reference`.
        lower_bound: See :func:`kda_gate_reference`.
        use_gate_in_kernel: See :func:`kda_gate_reference`.
        A_log: See :func:`kda_gate_reference`.
        dt_bias: See :func:`kda_gate_reference`.
        disable_recompute: Whether all intermediates are wanted.
        return_intermediate_states: Whether the state before each chunk is wanted.
        state_v_first: Whether states are stored ``[V, K]``.
        use_qk_l2norm_in_kernel: Normalise q and k; they are not rounded afterwards.
        use_beta_sigmoid_in_kernel: Whether beta is raw.
        allow_neg_eigval: Whether beta after its sigmoid is doubled.
        outputs: Names of the results that are wanted, instead of what the flags choose.
        compute_dtype: Dtype of all arithmetic.
        out_dtype: Of the results that have the dtype of q; None is the dtype of q. With float64 gk
            and the states are float64 too, otherwise float32.
        emulate: Dtype to which Akk, Aqk, w, u, qg, kg, v_new and h are rounded before the next step
            reads them, and ``beta k 2^gk`` and ``beta v`` as operands of a matrix product with
            Akk, while gk is rounded to float32. None rounds nothing.

    Returns:
        The twelve results; the last is the caller's own object.

    Notes: Reads ``cu_seqlens`` on the host.
    """
    wanted = _wanted(
        outputs,
        output_final_state=output_final_state,
        raw_gate=use_gate_in_kernel,
        disable_recompute=disable_recompute,
        return_intermediate_states=return_intermediate_states,
    )
    rows = _read_inputs(
        q,
        k,
        v,
        g,
        beta,
        layout=layout,
        A_log=A_log,
        dt_bias=dt_bias,
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        use_qk_l2norm_in_kernel=use_qk_l2norm_in_kernel,
        use_beta_sigmoid_in_kernel=use_beta_sigmoid_in_kernel,
        allow_neg_eigval=allow_neg_eigval,
        compute_dtype=compute_dtype,
    )
    batch, tokens = rows.q.shape[:2]
    chunks = Chunks.of(batch, tokens, chunk_size, cu_seqlens, rows.q.device)
    stored = Stored(emulate, compute_dtype)
    parts = within_chunks(rows, chunks, scale, stored)
    state = _states(rows, chunks.num_sequences, initial_state, state_v_first)
    h, v_new = across_chunks(parts, chunks, state, stored)
    out = scale * (parts["qg"] @ h) + parts["Aqk"] @ v_new

    out_dtype = q.dtype if out_dtype is None else out_dtype
    exact = torch.float64 if out_dtype == torch.float64 else torch.float32
    # [B * Nc, ...] -> [B, Nc, ...]; packed sequences count through.
    h = h.reshape(batch, len(h) // batch, *h.shape[1:])
    results = {
        "final_state": state.mT if state_v_first else state,
        "h": h.mT if state_v_first else h,
    }
    if layout in PACKED_LAYOUTS:
        results["h"] = results["h"][0]
    for name, padded in (*parts.items(), ("v_new", v_new)):
        if name in wanted:
            results[name] = head_major(chunks, padded, batch, layout)
    attn_out = chunks.join(out, batch)
    results["attn_out"] = attn_out[0] if layout in PACKED_LAYOUTS else attn_out
    for name, result in results.items():
        dtype = exact if name in ("gk", "final_state") else out_dtype
        results[name] = result.to(q.device, dtype).contiguous()
    names = sorted(wanted - {"initial_state"})
    return ChunkKdaOutputs.of(names, (results[name] for name in names), initial_state)


def _wanted(
    outputs: Sequence[str] | None,
    *,
    output_final_state: bool,
    raw_gate: bool,
    disable_recompute: bool,
    return_intermediate_states: bool,
) -> set[str]:
    if outputs is not None:
        return set(outputs)
    wanted = {"attn_out", "Aqk", "Akk"}
    if output_final_state:
        wanted.add("final_state")
    if not raw_gate or disable_recompute:
        wanted.add("gk")
    if disable_recompute:
        wanted |= {"w", "u", "qg", "kg", "v_new"}
    if disable_recompute or return_intermediate_states:
        wanted.add("h")
    return wanted


def _read_inputs(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    *,
    layout: str,
    A_log: torch.Tensor | None,
    dt_bias: torch.Tensor | None,
    use_gate_in_kernel: bool,
    safe_gate: bool,
    lower_bound: float | None,
    use_qk_l2norm_in_kernel: bool,
    use_beta_sigmoid_in_kernel: bool,
    allow_neg_eigval: bool,
    compute_dtype: torch.dtype,
) -> DeltaRuleRows:
    # An NPU has no float64.
    device = q.device if q.device.type in ("cpu", "cuda") else torch.device("cpu")
    read = [batch_first(x, layout).to(device, compute_dtype) for x in (q, k, v, beta)]
    f_q, f_k, f_v, f_beta = read
    if use_qk_l2norm_in_kernel:
        f_q, f_k = _normalised(f_q), _normalised(f_k)
    if use_beta_sigmoid_in_kernel:
        f_beta = torch.sigmoid(f_beta)
        if allow_neg_eigval:
            f_beta = 2 * f_beta
    a = kda_gate_reference(
        batch_first(g, layout).to(device),
        A_log=None if A_log is None else A_log.to(device),
        dt_bias=None if dt_bias is None else dt_bias.to(device),
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        compute_dtype=compute_dtype,
    )
    return DeltaRuleRows(f_q, f_k, f_v, a, f_beta)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + L2NORM_EPSILON).sqrt()


def _states(
    rows: DeltaRuleRows, num_sequences: int, initial_state: torch.Tensor | None, v_first: bool
) -> torch.Tensor:
    """Own copy ``[N, HV, K, V]`` of the initial states."""
    num_heads, head_dim_v = rows.v.shape[2:]
    if initial_state is None:
        return rows.q.new_zeros(num_sequences, num_heads, rows.q.shape[-1], head_dim_v)
    state = initial_state.to(rows.q.device, rows.q.dtype, copy=True)
    return state.mT.contiguous() if v_first else state
