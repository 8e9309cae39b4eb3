"""How an operator of ``torch.ops.fa_triton`` is registered: forward only, with a fake kernel."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import torch

from fa_triton.ops.routing import ATTENTION, no_vmap

NAMESPACE = "fa_triton"


def define(
    schema: str,
    *,
    run: Callable[..., Any],
    fake: Callable[..., Any],
    tags: Sequence[torch.Tag] = (),
    subject: str = ATTENTION,
) -> None:
    """Register an operator.

    Args:
        schema: ``name(arguments) -> results`` in torch's notation; its results are new tensors. An
            argument ``Tensor(a!)`` is written to.
        run: Implementation on every device.
        fake: Shapes, dtypes and strides of the results from those of the arguments.
        tags: Further properties of the operator.
        subject: What the operator computes, for messages.
    """
    signature = schema[schema.index("(") :]
    name = f"{NAMESPACE}::{schema[: schema.index('(')]}"
    torch.library.define(name, signature, tags=(torch.Tag.pt2_compliant_tag, *tags))
    torch.library.impl(name, "default", functools.partial(_untraced, run))
    torch.library.register_fake(name, fake)
    if "!" not in signature:
        # of an operator that writes to an argument torch takes no formula: validation refuses
        # gradients, also that of the fake
        torch.library.register_autograd(
            name, _refuse_backward, setup_context=functools.partial(_refuse_gradient, subject)
        )
    torch.library.register_vmap(name, functools.partial(_refuse_vmap, subject))


def _untraced(run: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Keep dynamo, if it is there at all, from tracing into an implementation it has to call."""
    if "torch._dynamo" in sys.modules:
        run = _without_dynamo(run)
    return run(*args, **kwargs)


@functools.cache
def _without_dynamo(run: Callable[..., Any]) -> Callable[..., Any]:
    return torch.compiler.disable(run)


def by_name(
    names: Sequence[str], args: Sequence[object], options: Mapping[str, object]
) -> dict[str, Any]:
    """Optional tensors, which torch passes by position, and options together by name."""
    return {**dict(zip(names, args, strict=False)), **options}


def has_symbols(*values: object) -> bool:
    """Whether a size or an argument is not known while a graph is traced."""
    return any(isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)) for value in values)


def tensors_have_symbols(*tensors: torch.Tensor | None) -> bool:
    """Whether a size or a stride of some tensor is not known while a graph is traced."""
    return any(
        has_symbols(*tensor.shape, *tensor.stride())
        for tensor in tensors
        if isinstance(tensor, torch.Tensor)
    )


def _refuse_gradient(subject: str, ctx: Any, **call: Any) -> NoReturn:
    """Called where autograd would record the call, instead of recording it."""
    raise NotImplementedError(
        f"{subject} is forward only: no argument may require a gradient, got one with "
        "requires_grad=True; call it under torch.no_grad() or pass tensors detached by .detach()"
    )


def _refuse_backward(ctx: Any, *gradients: Any) -> NoReturn:
    raise NotImplementedError("operators of fa_triton are forward only")


def _refuse_vmap(subject: str, *args: Any, **kwargs: Any) -> NoReturn:
    raise NotImplementedError(no_vmap(subject))
