"""Which functions of which modules are replaced, per version of vLLM and vllm-ascend."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

from fa_triton.vllm.kda import activated_calls, ascend_calls, operands, raw_calls
from fa_triton.vllm.kda.rebinding import Replacement, rebind_functions
from fa_triton.vllm.kda.support import reason_against
from fa_triton.vllm.selection import announce

USERS = ("vllm", "vllm_ascend")
# Kimi K3 and, from 0.27 on, Kimi-Linear; ROCm has a copy of its own.
KIMI_K3 = "vllm.models.kimi_k3.nvidia.ops.third_party.kda"


def bind_kda() -> None:
    """Let vLLM's Kimi-Linear layers call our operators.

    Modules that are not loaded yet are rebound when they are. A call that cannot be served goes to
    the function that was replaced, with one line of log that says why. Does nothing the second
    time.
    """
    for module_name, replacements in BINDINGS.items():
        rebind_functions(module_name, replacements, USERS)


def _served_here(ours: Callable[..., Any], form_of: Callable[..., tuple[Any, ...]]) -> Replacement:
    """Replacement that calls ``ours`` where :func:`reason_against` has nothing to say."""
    lower_bound_of = _argument(ours, "lower_bound")

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            reason = reason_against(
                *form_of(*args, **kwargs), lower_bound=lower_bound_of(args, kwargs)
            )
            if reason is None:
                return ours(*args, **kwargs)
            announce(f"{original.__module__}.{original.__name__} stays with vLLM: {reason}")
            return original(*args, **kwargs)

        return call

    return replacement


def _argument(
    function: Callable[..., Any], name: str
) -> Callable[[tuple[Any, ...], dict[str, Any]], Any]:
    """How to find an argument in a call; it is None where there is no such thing."""
    names = list(inspect.signature(function).parameters)
    if name not in names:
        return lambda _args, _kwargs: None
    at = names.index(name)
    return lambda args, kwargs: args[at] if len(args) > at else kwargs.get(name)


def _where_no_gpu(ours: Callable[..., Any]) -> Replacement:
    """Replacement on devices that the replaced kernel refuses."""

    def replacement(original: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(original)
        def call(*args: Any, **kwargs: Any) -> Any:
            first: torch.Tensor = args[0] if args else next(iter(kwargs.values()))
            keeps = first.device.type in ("cuda", "xpu")
            return (original if keeps else ours)(*args, **kwargs)

        return call

    return replacement


def _form_of_rows(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *_: Any, **__: Any
) -> tuple[Any, ...]:
    return q.dtype, q.shape[-2], v.shape[-2], q.shape[-1], v.shape[-1]


def _form_of_packed(
    mixed_qkv: torch.Tensor,
    raw_g: torch.Tensor,
    raw_beta: torch.Tensor,
    A_log: torch.Tensor,
    dt_bias: torch.Tensor,
    lower_bound: float | None,
    initial_state: torch.Tensor,
    *_: Any,
    **__: Any,
) -> tuple[Any, ...]:
    heads, value_dim, key_dim = initial_state.shape[1:]
    return mixed_qkv.dtype, heads, heads, key_dim, value_dim


# Prefill and decode with activated gates; up to 0.26 the modules of Kimi-Linear.
_ACTIVATED: dict[str, Replacement] = {
    "chunk_kda": _served_here(activated_calls.chunk_kda, _form_of_rows),
    "chunk_kda_with_fused_gate": _served_here(
        activated_calls.chunk_kda_with_activated_beta, _form_of_rows
    ),
    "fused_recurrent_kda": _served_here(
        activated_calls.fused_recurrent_kda_with_activated_gate, _form_of_rows
    ),
    "fused_kda_gate": _where_no_gpu(activated_calls.fused_kda_gate),
}
# vllm-ascend from 0.28 on; the operators it replaces are compiled ones.
_ASCEND: dict[str, Replacement] = {
    "run_chunk_kda": _served_here(ascend_calls.run_chunk_kda, _form_of_rows),
    "run_recurrent_kda": _served_here(ascend_calls.run_recurrent_kda, _form_of_rows),
}
BINDINGS: dict[str, dict[str, Replacement]] = {
    "vllm.model_executor.layers.fla.ops.kda": _ACTIVATED,
    "vllm.third_party.flash_linear_attention.ops.kda": _ACTIVATED,
    f"{KIMI_K3}.chunk": {
        "chunk_kda": _served_here(activated_calls.chunk_kda, _form_of_rows),
        "chunk_kda_with_fused_gate": _served_here(raw_calls.chunk_kda_with_raw_beta, _form_of_rows),
    },
    f"{KIMI_K3}.fused_recurrent": {
        "fused_recurrent_kda": _served_here(
            raw_calls.fused_recurrent_kda_with_raw_gate, _form_of_rows
        ),
        "fused_recurrent_kda_packed_decode": _served_here(
            raw_calls.fused_recurrent_kda_packed_decode, _form_of_packed
        ),
    },
    "vllm.model_executor.layers.mamba.ops.gather_initial_states": {
        "gather_initial_states": _where_no_gpu(operands.gathered_states),
    },
    "vllm_ascend.ops.kda": _ASCEND,
}
