"""Sinks of a layer as the kernels read them."""

from __future__ import annotations

import torch


def sink_logits(weights: torch.Tensor | None) -> torch.Tensor | None:
    """Logits of a layer's sinks.

    Args:
        weights: ``[Nq]`` in the dtype of the model; None for a layer without sinks. Engines load
            them in place and without a sign that an older reading could be known by, so they are
            read in every step.

    Returns:
        ``[Nq]`` fp32, dense; None for a layer without sinks.
    """
    return None if weights is None else weights.detach().float().contiguous()
