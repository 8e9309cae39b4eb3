"""Small calls of ``incre_flash_attention`` with real values, by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from tests.incre_flash_attention.batches import LIST, IncreBatch

LSE = {"return_softmax_lse": True}

BATCHES = {
    "dense": IncreBatch((9, 5, 2), heads=(4, 2), spare=3),
    "no lengths": IncreBatch((9, 9), heads=(4, 2), layout="BNSD", lengths="none", options=LSE),
    "device lengths": IncreBatch((9, 5), layout="BSND", lengths="device64", options=LSE),
    "list": IncreBatch((9, 0, 5), heads=(2, 2), cache=LIST, lengths="device", options=LSE),
    "pages": IncreBatch((40, 17), heads=(6, 2), cache="PA_BBND", lengths="device", options=LSE),
    "int8 pages": IncreBatch(
        (40, 17),
        heads=(4, 2),
        cache="PA_NZ",
        page_size=32,
        quant="per_channel",
        has_offset=True,
        output_quant="channel",
        has_output_offset=True,
    ),
    "everything": IncreBatch(
        (9, 0, 5),
        tokens=3,
        heads=(4, 2),
        dtype=torch.bfloat16,
        layout="BNSD",
        lengths="device",
        left_padding=2,
        quant="per_token_head",
        mask="head tree",
        bias="tokens",
        has_sinks=True,
        options={"softcap": 20.0, "win_left": 4, "lse_includes_sink": True, **LSE},
    ),
    "prefix": IncreBatch((9, 5), prefix=6, mask="2", tokens=2, options=LSE),
}


def mapped(call: dict[str, Any], change: Callable[[torch.Tensor], torch.Tensor]) -> dict[str, Any]:
    """Return all arguments, tensors changed, those of lists too."""

    def one(value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            return change(value)
        is_list = isinstance(value, list) and isinstance(value[0], torch.Tensor)
        return [change(tensor) for tensor in value] if is_list else value

    return {name: one(value) for name, value in call.items()}
