"""Launches of the phases: Gate, Prepare, Post-WU, FwdH, Finalize.

Kernels without a matrix product run one program per vector core, the others one per matrix core.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch

from fa_triton.delta_rule.layouts import kda_strides
from fa_triton.delta_rule.tiles import SCORE_ROWS
from fa_triton.device import device_info
from fa_triton.launch import runner

if TYPE_CHECKING:
    from fa_triton.delta_rule.buffers import PhaseBuffers
    from fa_triton.delta_rule.prepared import PreparedChunks
    from fa_triton.delta_rule.tables import ChunkTables
    from fa_triton.delta_rule.variants import KernelForm

Cores = Literal["matrix", "vector"]


@dataclass(frozen=True)
class GateInputs:
    """Tensors of the gate: raw or activated gates in the layout of the call, tables per head."""

    g: torch.Tensor
    A_log: torch.Tensor | None
    dt_bias: torch.Tensor | None


@dataclass(frozen=True)
class DeltaRuleInputs:
    """Tensors of the rule itself, in the layout of the call."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    beta: torch.Tensor


@dataclass(frozen=True)
class StateTensors:
    """States before and after the sequences; final ones may be the same memory.

    Attributes:
        initial_state: ``[N, HV, K, V]``, V first, or a pool; None: zero.
        final_state: Likewise; None: not wanted.
        state_indices: Slots of the sequences ``[N]`` int32, None for slot n.
        has_initial_state: ``[N]`` int8, None for all.
    """

    initial_state: torch.Tensor | None
    final_state: torch.Tensor | None
    state_indices: torch.Tensor | None
    has_initial_state: torch.Tensor | None


def run_gate(
    inputs: GateInputs,
    gk: torch.Tensor,
    chunks: torch.Tensor,
    *,
    layout: str,
    lower_bound: float,
    form: KernelForm,
) -> None:
    """Gate: write the cumulative gates ``gk [B, HV, T, K]`` of all chunks."""
    from fa_triton.kernels.kda_gate import kda_gate

    constants = dict(form.constants)
    num_v_heads, num_tokens, key_dim = gk.shape[-3:]
    tiles = -(-key_dim // constants["BLOCK_K"])
    _launch(
        kda_gate,
        form,
        len(chunks) * num_v_heads * tiles,
        gk.device,
        "vector",
        g=inputs.g,
        A_log=inputs.A_log,
        dt_bias=inputs.dt_bias,
        chunks=chunks,
        gk=gk,
        num_tokens=num_tokens,
        num_v_heads=num_v_heads,
        lower_bound=lower_bound,
        **_strides("g", inputs.g, layout),
    )


class ChunkPhases:
    """The phases after Gate of one call, each in the order they run.

    Args:
        inputs: Tensors of the call.
        buffers: What the phases write.
        tables: Chunks and sequences.
        prepared: Problem and kernel forms.
    """

    def __init__(
        self,
        inputs: DeltaRuleInputs,
        buffers: PhaseBuffers,
        tables: ChunkTables,
        prepared: PreparedChunks,
    ) -> None:
        self._inputs = inputs
        self._buffers = buffers
        self._tables = tables
        self._problem = prepared.problem
        self._forms = prepared.forms
        self._is_steep: torch.Tensor | None = None
        self._norms: dict[str, torch.Tensor | None] = {"q_rstd": None, "k_rstd": None}

    def norm(self) -> None:
        """Prepare: inverse norms of the rows of q and k, where they are normalised."""
        form = self._forms.qk_norm
        if form is None:
            return
        from fa_triton.kernels.kda_qk_norm import kda_qk_norm

        sizes = self._problem.sizes
        for name in self._norms:
            self._norms[name] = torch.empty(
                (sizes.batch_size, sizes.num_heads, sizes.num_tokens),
                dtype=torch.float32,
                device=sizes.device,
            )
        _launch(
            kda_qk_norm,
            form,
            self._tables.num_chunks * sizes.num_heads,
            sizes.device,
            "vector",
            q=self._inputs.q,
            k=self._inputs.k,
            chunks=self._tables.chunks,
            num_tokens=sizes.num_tokens,
            num_heads=sizes.num_heads,
            **self._norms,
            **self._input_strides("q", "k"),
        )

    def scores(self) -> None:
        """Prepare: scores Aqk and Lkk, steep blocks of an unbounded gate apart."""
        self._find_steep_blocks()
        from fa_triton.kernels.kda_prepare_diagonal import kda_prepare_diagonal
        from fa_triton.kernels.kda_prepare_scores import kda_prepare_scores

        kernels: tuple[tuple[object, KernelForm | None, Cores], ...] = (
            (kda_prepare_scores, self._forms.scores, "matrix"),
            (kda_prepare_diagonal, self._forms.diagonal, "vector"),
        )
        for kernel, form, cores in kernels:
            if form is None:
                continue
            blocks = self._problem.chunk_size // int(dict(form.constants)["BLOCK_R"])
            self._launch(
                kernel,
                form,
                self._units * blocks,
                cores,
                q=self._inputs.q,
                k=self._inputs.k,
                gk=self._buffers.gk,
                beta=self._inputs.beta,
                Aqk=self._buffers.Aqk,
                Lkk=self._buffers.Lkk,
                num_heads=self._problem.sizes.num_heads,
                scale=self._problem.scale,
                beta_scale=self._problem.beta_scale,
                is_steep=self._is_steep,
                chunks=self._tables.chunks,
                **self._norms,
                **self._input_strides("q", "k"),
                **_strides("b", self._inputs.beta, self._problem.layout),
            )

    def _find_steep_blocks(self) -> None:
        form = self._forms.spans
        if form is None:
            return
        from fa_triton.kernels.kda_prepare_spans import kda_prepare_spans

        blocks = self._problem.chunk_size // SCORE_ROWS
        self._is_steep = torch.empty(
            (self._units, blocks), dtype=torch.int32, device=self._problem.sizes.device
        )
        self._launch(
            kda_prepare_spans,
            form,
            self._units,
            "vector",
            gk=self._buffers.gk,
            chunks=self._tables.chunks,
            is_steep=self._is_steep,
        )

    def inverse(self) -> None:
        """Prepare: Akk, the inverse of the unit lower triangular key matrix."""
        from fa_triton.kernels.kda_prepare_inverse import kda_prepare_inverse
        from fa_triton.kernels.kda_prepare_merge import kda_prepare_merge

        buffers = self._buffers
        shared = {"Lkk": buffers.Lkk, "inverse": buffers.inverse, "chunks": self._tables.chunks}
        self._launch(kda_prepare_inverse, self._forms.inverse, self._units, "vector", **shared)
        for form in self._forms.merges:
            rows = 2 * int(dict(form.constants)["HALF"])
            is_last = rows == self._problem.chunk_size
            self._launch(
                kda_prepare_merge,
                form,
                self._units * (self._problem.chunk_size // rows),
                "matrix",
                merged=buffers.Akk if is_last else buffers.inverse,
                **shared,
            )

    def post_wu(self) -> None:
        """Post-WU: w, u, qg and kg."""
        from fa_triton.kernels.kda_post_wu import kda_post_wu

        buffers = self._buffers
        self._launch(
            kda_post_wu,
            self._forms.post_wu,
            self._units,
            "matrix",
            **vars(self._inputs),
            gk=buffers.gk,
            Akk=buffers.Akk,
            w=buffers.w,
            u=buffers.u,
            qg=buffers.qg,
            kg=buffers.kg,
            num_heads=self._problem.sizes.num_heads,
            beta_scale=self._problem.beta_scale,
            chunks=self._tables.chunks,
            **self._norms,
            **self._input_strides("q", "k", "v"),
            **_strides("b", self._inputs.beta, self._problem.layout),
        )

    def fwd_h(self, states: StateTensors) -> None:
        """FwdH: v_new, the states before the chunks, and the final states."""
        from fa_triton.kernels.kda_fwd_h import kda_fwd_h

        form, sizes, buffers = self._forms.fwd_h, self._problem.sizes, self._buffers
        self._launch(
            kda_fwd_h,
            form,
            self._tables.num_sequences * sizes.num_v_heads * self._column_tiles(form),
            "matrix",
            w=buffers.w,
            u=buffers.u,
            kg=buffers.kg,
            gk=buffers.gk,
            sequences=self._tables.sequences,
            v_new=buffers.v_new,
            h=buffers.h,
            num_slots=0 if states.initial_state is None else len(states.initial_state),
            stride_initial=_slot_stride(states.initial_state),
            stride_final=_slot_stride(states.final_state),
            **vars(states),
        )

    def finalize(self) -> None:
        """Finalize: the result ``[B, T, HV, V]``."""
        from fa_triton.kernels.kda_finalize import kda_finalize

        form, buffers = self._forms.finalize, self._buffers
        self._launch(
            kda_finalize,
            form,
            self._units * self._column_tiles(form),
            "matrix",
            qg=buffers.qg,
            Aqk=buffers.Aqk,
            v_new=buffers.v_new,
            h=buffers.h,
            scale=self._problem.scale,
            chunks=self._tables.chunks,
            attn_out=buffers.attn_out,
        )

    @property
    def _units(self) -> int:
        """Pairs of a chunk and a value head."""
        return self._tables.num_chunks * self._problem.sizes.num_v_heads

    def _column_tiles(self, form: KernelForm) -> int:
        return -(-self._problem.sizes.value_dim // int(dict(form.constants)["BLOCK_V"]))

    def _input_strides(self, *names: str) -> dict[str, int]:
        arguments: dict[str, int] = {}
        for name in names:
            arguments |= _strides(name, getattr(self._inputs, name), self._problem.layout)
        return arguments

    def _launch(
        self,
        kernel: object,
        form: KernelForm,
        num_tasks: int,
        cores: Cores,
        /,
        **arguments: Any,
    ) -> None:
        sizes = self._problem.sizes
        _launch(
            kernel,
            form,
            num_tasks,
            sizes.device,
            cores,
            num_tokens=sizes.num_tokens,
            num_v_heads=sizes.num_v_heads,
            **arguments,
        )


def _launch(
    kernel: object,
    form: KernelForm,
    num_tasks: int,
    device: torch.device,
    cores: Cores,
    /,
    **arguments: Any,
) -> None:
    """Run a persistent kernel: one program per core, no more than tasks."""
    info = device_info(device)
    programs = min(num_tasks, info.num_aiv if cores == "vector" else info.num_aic)
    runner(kernel)[(programs,)](
        num_tasks=num_tasks, **arguments, **dict(form.constants), variant=form.key
    )


def _strides(name: str, tensor: torch.Tensor, layout: str) -> dict[str, int]:
    by = kda_strides(tensor, layout)
    return {
        f"stride_{name}b": by.outer,
        f"stride_{name}t": by.token,
        f"stride_{name}h": by.head,
    }


def _slot_stride(states: torch.Tensor | None) -> int:
    return 0 if states is None else states.stride(0)
