"""Whether a call must go through torch's dispatcher, or may run its implementation at once."""

from __future__ import annotations

import torch
from torch._C import _len_torch_dispatch_stack
from torch._C._functorch import (
    is_batchedtensor,
    is_functorch_wrapped_tensor,
    is_gradtrackingtensor,
)

ATTENTION = "attention"
KDA = "Kimi Delta Attention"

_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)


def no_vmap(subject: str) -> str:
    """Say that an operator does not run inside ``torch.vmap``, and what to do."""
    advice = "give the batch its own axis"
    if subject in (ATTENTION, KDA):
        advice += " (BSND, BNSD) or pack the sequences as TND with cu_seqlens"
    return f"torch.vmap over {subject} is not built; {advice}"


def goes_through_dispatcher(*tensors: object, subject: str = ATTENTION) -> bool:
    """Whether torch must see the call as one operator.

    So it is while a graph is traced, under a dispatch mode (fake tensors, FLOP counters), and for
    tensors that are fake, on the meta device, or of a class that may intercept operators. What is
    no tensor at all is left to validation.

    Raises:
        NotImplementedError: A tensor inside ``torch.vmap``, ``torch.func.grad`` and the like.
    """
    if torch.compiler.is_compiling() or _len_torch_dispatch_stack():
        return True
    through = False
    for tensor in tensors:
        # most are absent options
        if tensor is None or not isinstance(tensor, torch.Tensor):
            continue
        if is_functorch_wrapped_tensor(tensor):
            _refuse_transform(tensor, subject)
            through = True
        elif type(tensor) not in _PLAIN_TYPES or tensor.is_meta:
            through = True
    return through


def _refuse_transform(tensor: torch.Tensor, subject: str) -> None:
    if is_batchedtensor(tensor):
        raise NotImplementedError(no_vmap(subject))
    if is_gradtrackingtensor(tensor):
        raise NotImplementedError(
            f"{subject} is forward only: derivatives by torch.func are not built; call it outside "
            "of torch.func.grad, jvp and the like"
        )
