"""Code for torch_npu runs with another import: same signature, the results CANN documents."""

from __future__ import annotations

import inspect
import sys
import types
from typing import Any

import pytest
import torch

from fa_triton.compat import torch_npu as compat
from fa_triton.incremental import incre_flash_attention

# The operator's schema: order, and defaults where they are not None.
ARGUMENTS = [
    "query",
    "key",
    "value",
    "padding_mask",
    "atten_mask",
    "pse_shift",
    "actual_seq_lengths",
    "antiquant_scale",
    "antiquant_offset",
    "block_table",
    "dequant_scale1",
    "quant_scale1",
    "dequant_scale2",
    "quant_scale2",
    "quant_offset2",
    "kv_padding_size",
    "num_heads",
    "scale_value",
    "input_layout",
    "num_key_value_heads",
    "block_size",
    "inner_precise",
]
DEFAULTS = {
    "num_heads": 1,
    "scale_value": 1.0,
    "input_layout": "BSH",
    "num_key_value_heads": 0,
    "block_size": 0,
    "inner_precise": 1,
}
DECODE = """
{imports}

def step(query, key, value, lengths, mask):
    return torch_npu.npu_incre_flash_attention(
        query, key, value, atten_mask=mask, actual_seq_lengths=lengths, num_heads=4,
        num_key_value_heads=2, input_layout="BSH", scale_value=0.25,
    )
"""


def operands(**changes: Any) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    call = {
        name: torch.randn(shape, generator=generator).half()
        for name, shape in (("query", (2, 1, 64)), ("key", (2, 12, 32)), ("value", (2, 12, 32)))
    }
    call |= {"num_heads": 4, "num_key_value_heads": 2, "scale_value": 0.25}
    return call | changes


def test_signature_is_the_operators() -> None:
    parameters = inspect.signature(compat.npu_incre_flash_attention).parameters
    assert list(parameters) == ARGUMENTS
    for index, (name, parameter) in enumerate(parameters.items()):
        kind = parameter.POSITIONAL_OR_KEYWORD if index < 3 else parameter.KEYWORD_ONLY
        assert parameter.kind == kind
        default = inspect.Parameter.empty if index < 3 else DEFAULTS.get(name)
        assert parameter.default == default, name


def test_only_the_import_changes() -> None:
    namespace: dict[str, Any] = {}
    code = DECODE.format(imports="from fa_triton.compat import torch_npu")
    exec(compile(code, "decode", "exec"), namespace)
    call = operands()
    mask = torch.zeros(2, 12, dtype=torch.bool)
    mask[:, 3] = True
    out = namespace["step"](call["query"], call["key"], call["value"], [12, 7], mask)
    wanted = incre_flash_attention(**call, atten_mask=mask, actual_seq_lengths=[12, 7])
    assert torch.equal(out, wanted)


def test_the_same_code_takes_a_module_of_that_name(monkeypatch: pytest.MonkeyPatch) -> None:
    # where code cannot be touched, the module stands in under torch_npu's name
    monkeypatch.setitem(sys.modules, "torch_npu", compat)
    namespace: dict[str, Any] = {}
    exec(compile(DECODE.format(imports="import torch_npu"), "decode", "exec"), namespace)
    assert isinstance(namespace["torch_npu"], types.ModuleType)
    call = operands()
    out = namespace["step"](call["query"], call["key"], call["value"], [12, 7], None)
    assert torch.equal(out, incre_flash_attention(**call, actual_seq_lengths=[12, 7]))


def test_hidden_rows_are_the_mean_of_the_values() -> None:
    call = operands()
    mask = torch.ones(2, 12, dtype=torch.bool)
    out = compat.npu_incre_flash_attention(**call, atten_mask=mask, actual_seq_lengths=[12, 5])
    mean = call["value"][1, :5].unflatten(-1, (2, 16)).double().mean(0).half()
    torch.testing.assert_close(out[1].view(2, 2, 16), mean[:, None].expand(-1, 2, -1))


@pytest.mark.parametrize("shape", [(2,), (2, 2, 1, 16), (2, 2, 16), (2, 32)], ids=str)
def test_scales_need_no_mode(shape: tuple[int, ...]) -> None:
    # (2, 2, 16) would also be one scale per token of two sequences
    generator = torch.Generator().manual_seed(1)
    cache = {
        name: torch.randint(-128, 128, (2, 12, 32), generator=generator).to(torch.int8)
        for name in ("key", "value")
    }
    call = operands(**cache, antiquant_scale=torch.rand(shape, generator=generator).half())
    mode = "per_tensor" if len(shape) == 1 else "per_channel"
    out = compat.npu_incre_flash_attention(**call)
    assert torch.equal(out, incre_flash_attention(**call, antiquant_mode=mode))


def test_reserved_argument_must_be_absent() -> None:
    compat.npu_incre_flash_attention(**operands(), padding_mask=torch.empty(0))
    with pytest.raises(ValueError, match=r"`padding_mask` must be None .* use atten_mask"):
        compat.npu_incre_flash_attention(**operands(), padding_mask=torch.ones(2, 12))
