"""Sinks follow the weights that they were read from."""

from __future__ import annotations

import pytest
import torch

from fa_triton.vllm.sinks import LayerSinks


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_weights_that_are_loaded_anew_are_read_anew(dtype):
    weights = torch.nn.Parameter(torch.zeros(4, dtype=dtype), requires_grad=False)
    sinks = LayerSinks(weights)
    assert torch.equal(sinks.logits(), torch.zeros(4))
    weights.data.fill_(3)
    sinks.forget()
    assert torch.equal(sinks.logits(), torch.full((4,), 3.0))


def test_logits_are_converted_once_and_dense():
    sinks = LayerSinks(torch.arange(8, dtype=torch.bfloat16)[::2])
    logits = sinks.logits()
    assert logits.dtype == torch.float32
    assert logits.is_contiguous()
    assert logits.tolist() == [0, 2, 4, 6]
    assert sinks.logits() is logits


def test_layer_without_sinks():
    sinks = LayerSinks(None)
    sinks.forget()
    assert sinks.logits() is None
