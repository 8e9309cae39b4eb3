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

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch

from fa_triton.delta_rule.outputs import ChunkKdaOutputs

LN2 = math.log(2.0)
DEFAULT_LOWER_BOUND = -5.0
L2NORM_EPSILON = 1e-6

# Rows of a block, whose decays against one another are taken pair by pair.
PAIR_ROWS = 16
# Decays of pairs of rows, all heads of a group of chunks.
PAIR_BYTES = 32 * 2**20

_HEAD_SECOND = ("BNSD", "NTD")
_PACKED = ("TND", "NTD")


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
        _batch_first(g, layout),
        A_log=A_log,
        dt_bias=dt_bias,
        use_gate_in_kernel=use_gate_in_kernel,
        safe_gate=safe_gate,
        lower_bound=lower_bound,
        compute_dtype=compute_dtype,
    )
    batch, tokens = a.shape[:2]
    chunks = _Chunks.of(batch, tokens, chunk_size, cu_seqlens, a.device)
    gk = chunks.cut(a).cumsum(2) / LN2
    return _head_major(chunks, gk, batch, layout)


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
    inputs = _Inputs.of(
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
    batch, tokens, num_heads, head_dim_v = inputs.v.shape
    starts, lengths = _sequences(batch, tokens, cu_seqlens)
    group = num_heads // inputs.q.shape[2]
    all_q, all_k = (x.flatten(0, 1).repeat_interleave(group, 1) for x in (inputs.q, inputs.k))
    all_v, keep, all_beta = (x.flatten(0, 1) for x in (inputs.v, inputs.a.exp(), inputs.beta))
    state = _states(inputs, len(lengths), initial_state, state_v_first)
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
    return (out[0] if layout in _PACKED else out).to(q.device), state.to(q.device)


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
    inputs = _Inputs.of(
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
    batch, tokens = inputs.q.shape[:2]
    chunks = _Chunks.of(batch, tokens, chunk_size, cu_seqlens, inputs.q.device)
    stored = _Stored(emulate, compute_dtype)
    parts = _within_chunks(inputs, chunks, scale, stored)
    state = _states(inputs, chunks.num_sequences, initial_state, state_v_first)
    h, v_new = _across_chunks(parts, chunks, state, stored)
    out = scale * (parts["qg"] @ h) + parts["Aqk"] @ v_new

    out_dtype = q.dtype if out_dtype is None else out_dtype
    exact = torch.float64 if out_dtype == torch.float64 else torch.float32
    # [B * Nc, ...] -> [B, Nc, ...]; packed sequences count through.
    h = h.reshape(batch, len(h) // batch, *h.shape[1:])
    results = {
        "final_state": state.mT if state_v_first else state,
        "h": h.mT if state_v_first else h,
    }
    if layout in _PACKED:
        results["h"] = results["h"][0]
    for name, padded in (*parts.items(), ("v_new", v_new)):
        if name in wanted:
            results[name] = _head_major(chunks, padded, batch, layout)
    attn_out = chunks.join(out, batch)
    results["attn_out"] = attn_out[0] if layout in _PACKED else attn_out
    for name, result in results.items():
        dtype = exact if name in ("gk", "final_state") else out_dtype
        results[name] = result.to(q.device, dtype).contiguous()
    return ChunkKdaOutputs(
        **{
            name: initial_state
            if name == "initial_state"
            else results[name]
            if name in wanted
            else None
            for name in ChunkKdaOutputs._fields
        }
    )


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


@dataclass(frozen=True)
class _Inputs:
    """What the delta rule reads, ``[B, T, heads, D]`` and beta ``[B, T, HV]``."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    a: torch.Tensor
    beta: torch.Tensor

    @classmethod
    def of(
        cls,
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
    ) -> _Inputs:
        # An NPU has no float64.
        device = q.device if q.device.type in ("cpu", "cuda") else torch.device("cpu")
        read = [_batch_first(x, layout).to(device, compute_dtype) for x in (q, k, v, beta)]
        f_q, f_k, f_v, f_beta = read
        if use_qk_l2norm_in_kernel:
            f_q, f_k = _normalised(f_q), _normalised(f_k)
        if use_beta_sigmoid_in_kernel:
            f_beta = torch.sigmoid(f_beta)
            if allow_neg_eigval:
                f_beta = 2 * f_beta
        a = kda_gate_reference(
            _batch_first(g, layout).to(device),
            A_log=None if A_log is None else A_log.to(device),
            dt_bias=None if dt_bias is None else dt_bias.to(device),
            use_gate_in_kernel=use_gate_in_kernel,
            safe_gate=safe_gate,
            lower_bound=lower_bound,
            compute_dtype=compute_dtype,
        )
        return cls(f_q, f_k, f_v, a, f_beta)


def _normalised(x: torch.Tensor) -> torch.Tensor:
    return x / (x.square().sum(-1, keepdim=True) + L2NORM_EPSILON).sqrt()


def _batch_first(x: torch.Tensor, layout: str) -> torch.Tensor:
    """View ``[B, T, heads, ...]`` of a tensor in ``layout``."""
    if layout in _PACKED:
        x = x[None]
    return x.transpose(1, 2) if layout in _HEAD_SECOND else x


def _sequences(
    batch: int, tokens: int, cu_seqlens: torch.Tensor | Sequence[int] | None
) -> tuple[list[int], list[int]]:
    """First token of every sequence among all ``B * T`` tokens, and lengths."""
    if cu_seqlens is None:
        return [b * tokens for b in range(batch)], [tokens] * batch
    bounds = cu_seqlens.tolist() if isinstance(cu_seqlens, torch.Tensor) else list(cu_seqlens)
    return bounds[:-1], [end - start for start, end in pairwise(bounds)]


def _states(
    inputs: _Inputs, num_sequences: int, initial_state: torch.Tensor | None, v_first: bool
) -> torch.Tensor:
    """Own copy ``[N, HV, K, V]`` of the initial states."""
    num_heads, head_dim_v = inputs.v.shape[2:]
    if initial_state is None:
        return inputs.q.new_zeros(num_sequences, num_heads, inputs.q.shape[-1], head_dim_v)
    state = initial_state.to(inputs.q.device, inputs.q.dtype, copy=True)
    return state.mT.contiguous() if v_first else state


@dataclass(frozen=True)
class _Chunks:
    """Which tokens, counted through all batch entries, are in which chunk.

    Attributes:
        token: ``[Nc, C]``, 0 behind the end of a sequence.
        is_token: ``[Nc, C]``, whether the place holds a token.
        first_chunk: First chunk of each sequence ``[N]``.
        num_chunks: Chunks of each sequence ``[N]``; an empty one has none.
    """

    token: torch.Tensor
    is_token: torch.Tensor
    first_chunk: torch.Tensor
    num_chunks: torch.Tensor

    @classmethod
    def of(
        cls,
        batch: int,
        tokens: int,
        chunk_size: int,
        cu_seqlens: torch.Tensor | Sequence[int] | None,
        device: torch.device,
    ) -> _Chunks:
        starts, lengths = (
            torch.tensor(x, dtype=torch.int64, device=device)
            for x in _sequences(batch, tokens, cu_seqlens)
        )
        num_chunks = (lengths + chunk_size - 1) // chunk_size
        first_chunk = num_chunks.cumsum(0) - num_chunks
        i_n = torch.arange(len(starts), device=device).repeat_interleave(num_chunks)
        i_local = torch.arange(len(i_n), device=device) - first_chunk[i_n]
        place = i_local[:, None] * chunk_size + torch.arange(chunk_size, device=device)
        is_token = place < lengths[i_n][:, None]
        token = torch.where(is_token, starts[i_n][:, None] + place, 0)
        return cls(token, is_token, first_chunk, num_chunks)

    @property
    def num_sequences(self) -> int:
        return len(self.num_chunks)

    def cut(self, x: torch.Tensor, which: slice = slice(None)) -> torch.Tensor:
        """Chunks ``[n, heads, C, ...]`` of ``[B, T, heads, ...]``, 0 behind the end."""
        token, is_token = self.token[which], self.is_token[which]
        x = x.flatten(0, 1)
        cut = x.new_zeros(*token.shape, *x.shape[1:])
        cut[is_token] = x[token[is_token]]
        return cut.transpose(1, 2)

    def join(self, padded: torch.Tensor, batch: int) -> torch.Tensor:
        """``[B, T, heads, ...]`` of chunks ``[Nc, heads, C, ...]``."""
        # Sequences follow one another without gaps, so these are all tokens in their order.
        joined = padded.transpose(1, 2)[self.is_token]
        return joined.reshape(batch, len(joined) // batch, *joined.shape[1:])


def _head_major(chunks: _Chunks, padded: torch.Tensor, batch: int, layout: str) -> torch.Tensor:
    """``[B, heads, T, ...]`` of chunks, without B for packed layouts."""
    joined = chunks.join(padded, batch).transpose(1, 2).contiguous()
    return joined[0] if layout in _PACKED else joined


@dataclass(frozen=True)
class _Stored:
    """What a tensor is after it was stored by one step and read by the next."""

    dtype: torch.dtype | None
    compute: torch.dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x if self.dtype is None else x.to(self.dtype).to(self.compute)

    def gate(self, gk: torch.Tensor) -> torch.Tensor:
        return gk if self.dtype is None else gk.float().to(self.compute)


def _within_chunks(
    inputs: _Inputs, chunks: _Chunks, scale: float, stored: _Stored
) -> dict[str, torch.Tensor]:
    """Everything that needs no state: ``[Nc, HV, C, ...]`` by name."""
    num_chunks, chunk_size = chunks.token.shape
    num_heads, head_dim = inputs.a.shape[2:]
    pair_rows = min(PAIR_ROWS, chunk_size)
    bytes_per_chunk = num_heads * pair_rows**2 * head_dim * inputs.a.element_size()
    step = max(1, PAIR_BYTES // bytes_per_chunk)
    groups = [
        _within_group(inputs, chunks, slice(i, i + step), scale, stored)
        for i in range(0, max(num_chunks, 1), step)
    ]
    return {name: torch.cat([group[name] for group in groups]) for name in groups[0]}


def _within_group(
    inputs: _Inputs, chunks: _Chunks, which: slice, scale: float, stored: _Stored
) -> dict[str, torch.Tensor]:
    group = inputs.v.shape[2] // inputs.q.shape[2]
    q, k = (chunks.cut(x, which).repeat_interleave(group, 1) for x in (inputs.q, inputs.k))
    v = chunks.cut(inputs.v, which)
    beta = chunks.cut(inputs.beta, which)[..., None]
    # Places behind the end keep the sum of the last token.
    gk = stored.gate(chunks.cut(inputs.a, which).cumsum(2) / LN2)
    Aqk, Lkk = _decayed_scores(q, k, gk)
    Aqk = stored(scale * Aqk)
    eye = torch.eye(gk.shape[2], dtype=gk.dtype, device=gk.device)
    Lkk = beta * Lkk.tril(-1) + eye
    Akk = torch.linalg.solve_triangular(Lkk, eye.expand_as(Lkk), upper=False, unitriangular=True)
    Akk = stored(Akk.masked_fill(~chunks.is_token[which][:, None, :, None], 0))
    decay = torch.exp2(gk)
    return {
        "gk": gk,
        "Aqk": Aqk,
        "Akk": Akk,
        "w": stored(Akk @ stored(beta * k * decay)),
        "u": stored(Akk @ stored(beta * v)),
        "qg": stored(q * decay),
        "kg": stored(k * torch.exp2(gk[:, :, -1:] - gk)),
    }


def _decayed_scores(
    q: torch.Tensor, k: torch.Tensor, gk: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """``sum_k q_ik k_jk 2^(gk_ik - gk_jk)`` for i >= j, else 0, and the same with k for q.

    Rows of one block meet pair by pair. A block meets earlier rows as a matrix product, each side
    decayed up to the first row of the block, which lies between them.
    """
    chunk_size = gk.shape[2]
    scores_q = gk.new_zeros(*gk.shape[:3], chunk_size)
    scores_k = torch.zeros_like(scores_q)
    for start in range(0, chunk_size, PAIR_ROWS):
        rows, earlier = slice(start, min(start + PAIR_ROWS, chunk_size)), slice(0, start)
        b_gk = gk[:, :, rows]
        b_q, b_k = q[:, :, rows], k[:, :, rows]
        num_rows = b_gk.shape[2]
        later = torch.ones(num_rows, num_rows, dtype=torch.bool, device=gk.device).triu(1)
        exponent = b_gk[:, :, :, None] - b_gk[:, :, None]
        exponent.masked_fill_(later[..., None], -torch.inf)
        pair = exponent.exp2_().mul_(b_k[:, :, None])
        scores_q[:, :, rows, rows] = (pair @ b_q[..., None])[..., 0]
        scores_k[:, :, rows, rows] = (pair @ b_k[..., None])[..., 0]
        if start == 0:
            continue
        between = gk[:, :, start : start + 1]
        down = torch.exp2(b_gk - between)
        up = (k[:, :, earlier] * torch.exp2(between - gk[:, :, earlier])).mT
        scores_q[:, :, rows, earlier] = (b_q * down) @ up
        scores_k[:, :, rows, earlier] = (b_k * down) @ up
    return scores_q, scores_k


def _across_chunks(
    parts: dict[str, torch.Tensor], chunks: _Chunks, state: torch.Tensor, stored: _Stored
) -> tuple[torch.Tensor, torch.Tensor]:
    """State before each chunk and v_new, ``[Nc, HV, ...]``; ``state`` becomes the last one."""
    h = state.new_zeros(len(chunks.token), *state.shape[1:])
    v_new = torch.zeros_like(parts["u"])
    last = torch.exp2(parts["gk"][:, :, -1])[..., None]
    longest = int(chunks.num_chunks.max()) if chunks.num_sequences else 0
    for step in range(longest):
        running = (chunks.num_chunks > step).nonzero()[:, 0]
        i_c = chunks.first_chunk[running] + step
        s = state[running]
        h[i_c] = stored(s)
        v_new[i_c] = stored(parts["u"][i_c] - parts["w"][i_c] @ h[i_c])
        state[running] = last[i_c] * s + parts["kg"][i_c].mT @ v_new[i_c]
    return h, v_new
