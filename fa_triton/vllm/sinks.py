"""Sinks of a layer as the kernels read them."""

from __future__ import annotations

import torch


class LayerSinks:
    """Logits of a layer's sinks in fp32, read from the weights when they are first needed.

    Args:
        weights: ``[Nq]`` in the dtype of the model, written in place when weights are loaded; None
            for a layer without sinks.
    """

    def __init__(self, weights: torch.Tensor | None) -> None:
        self.weights = weights
        self._logits: torch.Tensor | None = None

    def forget(self) -> None:
        """Read the weights again: they may have been loaded anew."""
        self._logits = None

    def logits(self) -> torch.Tensor | None:
        """``[Nq]`` fp32, dense; None for a layer without sinks."""
        if self._logits is None and self.weights is not None:
            self._logits = self.weights.detach().float().contiguous()
        return self._logits
