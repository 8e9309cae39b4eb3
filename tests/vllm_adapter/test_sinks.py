"""Sinks follow the weights that they are read from."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.sinks import sink_logits


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_loaded_anew_are_read_anew(dtype):
    """Engines write to ``data``, which no version counts, and some call nothing afterwards."""
    weights = torch.nn.Parameter(torch.zeros(4, dtype=dtype), requires_grad=False)
    assert torch.equal(sink_logits(weights), torch.zeros(4))
    weights.data.fill_(3)
    assert torch.equal(sink_logits(weights), torch.full((4,), 3.0))


def test_logits_are_dense_and_without_a_gradient():
    weights = torch.nn.Parameter(torch.arange(8, dtype=torch.bfloat16))
    logits = sink_logits(weights[::2])
    assert logits.dtype == torch.float32
    assert logits.is_contiguous()
    assert not logits.requires_grad
    assert logits.tolist() == [0, 2, 4, 6]


def test_layer_without_sinks():
    assert sink_logits(None) is None
