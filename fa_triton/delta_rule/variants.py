"""Compile-time arguments of the chunk kernels, and the form of each that a call runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from fa_triton.delta_rule.tiles import SCORE_ROWS
from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.padding import padded

if TYPE_CHECKING:
    from fa_triton.delta_rule.problem import ChunkKdaProblem
    from fa_triton.delta_rule.tiles import ChunkTiles
    from fa_triton.validation.delta_rule import DeltaRuleSizes, GateOptions


# as kernels/_kda_gate.py counts them
GATE_MODES = {"given": 0, "softplus": 1, "bounded": 2}


@dataclass(frozen=True)
class ChunkForms:
    """Forms of the kernels of one call in the order they run; None for one that does not."""

    gate: KernelForm
    qk_norm: KernelForm | None
    spans: KernelForm | None
    scores: KernelForm | None
    diagonal: KernelForm | None
    inverse: KernelForm
    merges: tuple[KernelForm, ...]
    post_wu: KernelForm
    fwd_h: KernelForm
    finalize: KernelForm


def gate_form(sizes: DeltaRuleSizes, gate: GateOptions, chunk_size: int, gate_k: int) -> KernelForm:
    """Form of ``kda_gate``."""
    given = {"A_log": gate.gate != "given", "dt_bias": gate.has_dt_bias}
    return KernelForm(
        "kda_gate",
        dtype_name(sizes.gate_dtype),
        _constants(
            K=sizes.key_dim,
            CHUNK=chunk_size,
            BLOCK_K=gate_k,
            GATE=GATE_MODES[gate.gate],
        ),
        tuple(name for name, is_there in given.items() if is_there),
    )


def chunk_forms(problem: ChunkKdaProblem, tiles: ChunkTiles) -> ChunkForms:
    """Forms of all kernels of a call."""
    sizes = problem.sizes
    key_dim, value_dim, chunk = sizes.key_dim, sizes.value_dim, problem.chunk_size
    dtype = dtype_name(sizes.dtype)
    beta = (("beta", dtype_name(sizes.beta_dtype)),)
    norms = ("q_rstd", "k_rstd") if problem.has_qk_norm else ()
    sigmoid = problem.has_beta_sigmoid
    qk_norm = spans = scores = diagonal = None
    if problem.has_qk_norm:
        constants = _constants(K=key_dim, CHUNK=chunk, BLOCK_K=tiles.norm_k)
        qk_norm = KernelForm("kda_qk_norm", dtype, constants)
    # a chunk of one block has no scores beside it: all of it is taken apart
    steep = () if problem.gate.is_bounded or chunk == SCORE_ROWS else ("is_steep",)
    if steep:
        constants = _constants(K=key_dim, CHUNK=chunk, BLOCK_K=tiles.norm_k)
        spans = KernelForm("kda_prepare_spans", "fp32", constants)
    if problem.gate.is_bounded or chunk > SCORE_ROWS:
        constants = _constants(
            K=key_dim,
            CHUNK=chunk,
            BLOCK_R=SCORE_ROWS,
            BLOCK_C=tiles.score_c,
            BLOCK_K=tiles.score_k,
            HAS_BETA_SIGMOID=sigmoid,
        )
        scores = KernelForm("kda_prepare_scores", dtype, constants, (*norms, *steep), beta)
    if not problem.gate.is_bounded:
        constants = _constants(
            K=key_dim,
            CHUNK=chunk,
            BLOCK_R=SCORE_ROWS,
            BLOCK_K=tiles.diagonal_k,
            HAS_BETA_SIGMOID=sigmoid,
        )
        diagonal = KernelForm("kda_prepare_diagonal", dtype, constants, (*norms, *steep), beta)
    inverse = _constants(CHUNK=chunk, BLOCK_R=tiles.inverse_r)
    merges = _merge_forms(dtype, chunk, tiles.inverse_r)
    post_wu = _constants(
        K=key_dim,
        V=value_dim,
        CHUNK=chunk,
        BLOCK_K=tiles.wu_k,
        BLOCK_V=tiles.wu_v,
        HAS_BETA_SIGMOID=sigmoid,
    )
    states = {
        "K": key_dim,
        "V": value_dim,
        "CHUNK": chunk,
        "BLOCK_K": padded(key_dim),
        "IS_V_FIRST": problem.state_v_first,
    }
    return ChunkForms(
        gate=gate_form(sizes, problem.gate, chunk, tiles.gate_k),
        qk_norm=qk_norm,
        spans=spans,
        scores=scores,
        diagonal=diagonal,
        inverse=KernelForm("kda_prepare_inverse", "fp32" if merges else dtype, inverse),
        merges=merges,
        post_wu=KernelForm("kda_post_wu", dtype, post_wu, norms, beta),
        fwd_h=_fwd_h_form(problem, dtype, _constants(**states, BLOCK_V=tiles.state_v)),
        finalize=KernelForm("kda_finalize", dtype, _constants(**states, BLOCK_V=tiles.out_v)),
    )


def _merge_forms(dtype: str, chunk: int, inverse_rows: int) -> tuple[KernelForm, ...]:
    """From blocks of so many rows up to the chunk; all but the last leave fp32."""
    halves = []
    while inverse_rows << len(halves) < chunk:
        halves.append(inverse_rows << len(halves))
    return tuple(
        KernelForm(
            "kda_prepare_merge",
            dtype if 2 * half == chunk else "fp32",
            _constants(CHUNK=chunk, HALF=half),
        )
        for half in halves
    )


def _fwd_h_form(
    problem: ChunkKdaProblem, dtype: str, constants: tuple[tuple[str, int | bool], ...]
) -> KernelForm:
    given = {
        "initial_state": problem.has_initial_state,
        "state_indices": problem.has_state_indices,
        "has_initial_state": problem.has_state_mask,
        "final_state": problem.wants("final_state"),
    }
    tensors = tuple(name for name, is_there in given.items() if is_there)
    dtypes = (("state", dtype_name(problem.state_dtype)),)
    return KernelForm("kda_fwd_h", dtype, constants, tensors, dtypes)


def _constants(**values: int | bool) -> tuple[tuple[str, int | bool], ...]:
    return tuple(values.items())
