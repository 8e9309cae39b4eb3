"""Compile-time arguments of ``kda_recurrent``, and the form of it that a call runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from fa_triton.kernel_form import KernelForm, dtype_name
from fa_triton.padding import padded

if TYPE_CHECKING:
    from fa_triton.delta_rule.recurrent_problem import RecurrentProblem

RECURRENT = "kda_recurrent"
# Tensors that a call may leave out, in the order of the kernel's arguments.
RECURRENT_TENSORS = (
    "a_log",
    "dt_bias",
    "final_state",
    "cu_seqlens",
    "ssm_state_indices",
    "num_accepted_tokens",
)
# as kernels/_kda_gate.py counts them
GATE_MODES = {"given": 0, "softplus": 1, "bounded": 2}


def k_tile(dim_k: int) -> int:
    """Columns of the tile that holds all of K."""
    return padded(dim_k, 16)


def v_tile(dim_v: int, dim_k: int) -> int:
    """Channels of V that one task holds.

    A state tile of 64 x 128 fp32 and its products fill the unified buffer of an NPU; on a CPU tiles
    of 64 were fastest too (Xeon with AVX-512, 2026-11-30).
    """
    return min(padded(dim_v, 16), 64 if k_tile(dim_k) <= 128 else 32)


def recurrent_constants(
    dim_k: int,
    dim_v: int,
    *,
    gate_mode: int,
    is_v_first: bool,
    has_l2norm: bool,
    has_beta_sigmoid: bool,
    is_in_place: bool,
    has_step_slots: bool,
) -> dict[str, int | bool]:
    """Compile-time arguments of ``kda_recurrent``."""
    block_k, block_v = k_tile(dim_k), v_tile(dim_v, dim_k)
    return {
        "BLOCK_K": block_k,
        "BLOCK_V": block_v,
        "GATE_MODE": gate_mode,
        "IS_V_FIRST": is_v_first,
        "HAS_PADDING": dim_k != block_k or dim_v % block_v != 0,
        "HAS_L2NORM": has_l2norm,
        "HAS_BETA_SIGMOID": has_beta_sigmoid,
        "IS_IN_PLACE": is_in_place,
        "STORES_EACH_STEP": has_step_slots,
    }


def recurrent_form(problem: RecurrentProblem, tensors: Collection[str]) -> KernelForm:
    """Form of the kernel that serves a call with these optional tensors."""
    sizes = problem.sizes
    constants = recurrent_constants(
        sizes.key_dim,
        sizes.value_dim,
        gate_mode=GATE_MODES[problem.gate.gate],
        is_v_first=problem.state_v_first,
        has_l2norm=problem.has_l2norm,
        has_beta_sigmoid=problem.has_beta_sigmoid,
        is_in_place=problem.in_place,
        has_step_slots=problem.has_step_slots,
    )
    return KernelForm(
        RECURRENT,
        dtype_name(sizes.dtype),
        tuple(constants.items()),
        tuple(name for name in RECURRENT_TENSORS if name in tensors),
        (
            ("raw_gate", dtype_name(sizes.gate_dtype)),
            ("beta", dtype_name(sizes.beta_dtype)),
            ("state", dtype_name(problem.state_dtype)),
        ),
    )
