"""Small inputs that break implementations, each with the property that must hold."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.incre_flash_attention.accuracy import assert_accurate
from tests.incre_flash_attention.by_the_letter import attend_by_the_letter
from tests.incre_flash_attention.conftest import Attend

f16 = torch.float16


def random(*shape: int, seed: int = 0, dtype: torch.dtype = f16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def operands(
    batch: int, heads: int, kv_heads: int, keys: int, *, tokens: int = 1, dim: int = 16
) -> dict[str, Any]:
    """A call in BNSD."""
    return {
        "query": random(batch, heads, tokens, dim, seed=1),
        "key": random(batch, kv_heads, keys, dim, seed=2),
        "value": random(batch, kv_heads, keys, dim, seed=3),
        "num_heads": heads,
        "num_key_value_heads": kv_heads,
        "input_layout": "BNSD",
        "scale_value": dim**-0.5,
        "return_softmax_lse": True,
    }


def check(attend: Attend, call: dict[str, Any]) -> tuple[torch.Tensor, torch.Tensor]:
    """Attend, hold the budget and the literal result, return what came."""
    out, lse = attend(**call)
    assert_accurate(out, lse, call)
    letter, _ = attend_by_the_letter(**call)
    if out.dtype == torch.int8:
        assert (out - letter).abs().max() <= 1
    else:
        step = 0.02 if call["key"][0].dtype == torch.int8 else 0.004
        torch.testing.assert_close(out.double(), letter, atol=step * letter.abs().max(), rtol=0)
    return out, lse


@pytest.mark.parametrize("shape", [(1, 600), (1, 1, 600), (1, 1, 1, 600), (1, 12, 1, 600)])
def test_columns_past_512_of_a_mask_count(attend: Attend, shape: tuple[int, ...]) -> None:
    call = operands(1, 12, 12, 600)
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[..., 513:] = True
    out, lse = attend(**call, atten_mask=mask)
    assert_accurate(out, lse, call | {"atten_mask": mask})
    cut = {name: call[name][:, :, :513] for name in ("key", "value")}
    wanted, _ = attend(**call | cut)
    torch.testing.assert_close(out, wanted)


def test_bias_is_per_head(attend: Attend) -> None:
    call = operands(2, 4, 2, 10)
    bias = torch.zeros(1, 4, 1, 10, dtype=f16)
    # head n is drawn to key n + 2
    for n in range(4):
        bias[0, n, 0, n + 2] = 60
    out, _ = check(attend, call | {"pse_shift": bias})
    for n in range(4):
        torch.testing.assert_close(out[:, n, 0], call["value"][:, n // 2, n + 2])


def test_a_sequence_without_keys_is_zero(attend: Attend) -> None:
    call = operands(4, 2, 1, 5) | {"actual_seq_lengths": [5, 5, 5, 0]}
    call["key"][3] = call["value"][3] = torch.nan
    out, lse = check(attend, call)
    assert torch.equal(out[3], torch.zeros_like(out[3]))
    assert (lse[3] == torch.inf).all()
    assert out[:3].isfinite().all()
    assert lse[:3].isfinite().all()


def test_paged_int8_cache_with_an_outlier_channel(attend: Attend) -> None:
    heads, dim, page, length = 2, 16, 32, 50
    call = operands(1, 4, heads, 1, dim=dim)
    generator = torch.Generator().manual_seed(5)
    shape = (4, heads, page, dim)
    for side in ("key", "value"):
        call[side] = torch.randint(-128, 128, shape, generator=generator).to(torch.int8)
    scale = torch.full((2, heads, 1, dim), 0.01, dtype=f16)
    scale[:, 1, :, 7] = 1.5
    offset = random(2, heads, 1, dim, seed=6).round()
    table = torch.tensor([[2, 0]], dtype=torch.int32)
    quantised = {
        "antiquant_scale": scale,
        "antiquant_offset": offset,
        "block_table": table,
        "actual_seq_lengths": [length],
        "block_size": page,
    }
    out, _ = check(attend, call | quantised)
    dequantised = {
        side: ((call[side][[2, 0]] + offset[i].double()) * scale[i].double()).to(f16)
        for i, side in enumerate(("key", "value"))
    }
    # [pages, heads, page, dim] -> [1, heads, tokens, dim]
    dense = {
        side: pages.transpose(0, 1).flatten(1, 2)[None, :, :length]
        for side, pages in dequantised.items()
    }
    wanted, _ = attend(**call | dense)
    torch.testing.assert_close(out, wanted, atol=0.02, rtol=0.02)


def test_left_padding(attend: Attend) -> None:
    call = operands(2, 2, 1, 10)
    for side in ("key", "value"):
        call[side][0, :, 7:] = torch.nan
        call[side][1] = torch.nan
    out, lse = check(
        attend,
        call | {"kv_padding_size": torch.tensor([3]), "actual_seq_lengths": [7, 8]},
    )
    cut = {name: call[name][:1, :, :7] for name in ("query", "key", "value")}
    wanted, _ = attend(**call | cut)
    torch.testing.assert_close(out[:1], wanted)
    # it would start at column -1
    assert torch.equal(out[1], torch.zeros_like(out[1]))
    assert (lse[1] == torch.inf).all()


def test_siblings_of_a_tree_do_not_see_each_other(attend: Attend) -> None:
    call = operands(1, 2, 1, 10, tokens=4)
    parents = [-1, 0, 0, 1]
    mask = torch.ones(1, 1, 4, 10, dtype=torch.bool)
    mask[..., :6] = False
    seen = {row: row_and_ancestors(parents, row) for row in range(4)}
    for row, tokens in seen.items():
        mask[0, 0, row, [6 + token for token in tokens]] = False
    out, _ = check(attend, call | {"atten_mask": mask})
    for row, tokens in seen.items():
        columns = [*range(6), *(6 + token for token in tokens)]
        alone = {name: call[name][:, :, columns] for name in ("key", "value")}
        wanted, _ = attend(**call | alone | {"query": call["query"][:, :, row : row + 1]})
        torch.testing.assert_close(out[:, :, row : row + 1], wanted)


def row_and_ancestors(parents: list[int], row: int) -> list[int]:
    found = []
    while row >= 0:
        found.append(row)
        row = parents[row]
    return found


def test_query_tokens_are_causal_among_themselves(attend: Attend) -> None:
    call = operands(2, 2, 2, 9, tokens=3) | {"actual_seq_lengths": [9, 2]}
    out, lse = check(attend, call)
    # the first of three tokens has no key where there are two
    assert torch.equal(out[1, :, 0], torch.zeros_like(out[1, :, 0]))
    torch.testing.assert_close(out[1, :, 1], call["value"][1, :, 0])
    assert (lse[1, :, 0] == torch.inf).all()


@pytest.mark.parametrize("name", ["zero", "mean"])
def test_a_row_that_sees_nothing(attend: Attend, name: str) -> None:
    call = operands(2, 2, 1, 10) | {"actual_seq_lengths": [10, 6], "masked_row": name}
    mask = torch.zeros(2, 10, dtype=torch.int8)
    mask[1, :6] = 1
    out, lse = check(attend, call | {"atten_mask": mask})
    mean = call["value"][1, 0, :6].double().mean(0).to(f16)
    wanted = mean if name == "mean" else torch.zeros_like(mean)
    torch.testing.assert_close(out[1, :, 0], wanted.expand(2, -1))
    assert (lse[1] == torch.inf).all()


def test_result_in_int8_rounds_half_to_even_and_saturates(attend: Attend) -> None:
    call = operands(1, 1, 1, 1)
    call["value"][0, 0, 0] = torch.tensor([0.25, 0.75, 1.25, -0.25, -0.75, 99, -99, 0] * 2)
    out, _ = attend(**call, quant_scale2=torch.tensor([2.0]))
    assert out.dtype == torch.int8
    assert out.flatten().tolist() == [0, 2, 2, 0, -2, 127, -128, 0] * 2
    out, _ = attend(**call, quant_scale2=torch.full((16,), 2.0), quant_offset2=torch.arange(16.0))
    assert out.flatten().tolist()[:5] == [0, 2, 4, 2, 2]


def test_a_sequence_without_keys_quantises_zero(attend: Attend) -> None:
    call = operands(1, 2, 1, 4) | {"actual_seq_lengths": [0]}
    out, _ = attend(**call, quant_scale2=torch.ones(1), quant_offset2=torch.tensor([5.0]))
    assert (out == 5).all()


def test_lists_have_their_own_lengths(attend: Attend) -> None:
    call = operands(3, 2, 1, 12)
    sizes = (12, 5, 1)
    lists = {
        name: [call[name][b : b + 1, :, :size].contiguous() for b, size in enumerate(sizes)]
        for name in ("key", "value")
    }
    out, _ = check(attend, call | lists)
    wanted, _ = attend(**call, actual_seq_lengths=list(sizes))
    torch.testing.assert_close(out, wanted)
    alone = {name: [call[name]] for name in ("key", "value")}
    torch.testing.assert_close(attend(**call | alone)[0], attend(**call)[0])


def test_a_shared_prefix_is_what_it_replaces(attend: Attend) -> None:
    call = operands(2, 2, 2, 9, tokens=2)
    prefix = {f"{name}_shared_prefix": random(1, 2, 7, 16, seed=8) for name in ("key", "value")}
    lengths, mask = [9, 0], torch.zeros(2, 16, dtype=torch.bool)
    mask[:, 3] = mask[0, 8] = True
    bias = random(1, 2, 1, 16, seed=9)
    more = {"atten_mask": mask, "pse_shift": bias}
    out, lse = check(attend, call | prefix | more | {"actual_seq_lengths": lengths})
    whole = {
        name: torch.cat((prefix[f"{name}_shared_prefix"].expand(2, -1, -1, -1), call[name]), 2)
        for name in ("key", "value")
    }
    wanted, wanted_lse = attend(**call | whole | more | {"actual_seq_lengths": [16, 7]})
    # each is accurate; they need not round alike
    torch.testing.assert_close(out, wanted, rtol=2e-3, atol=2e-4)
    torch.testing.assert_close(lse, wanted_lse)


def test_a_sink_of_minus_infinity_leaves_a_row_behind_a_prefix_empty(attend: Attend) -> None:
    call = operands(2, 2, 1, 9)
    prefix = {f"{name}_shared_prefix": random(1, 1, 7, 16, seed=8) for name in ("key", "value")}
    mask = torch.zeros(2, 16, dtype=torch.bool)
    mask[0] = True
    sinks = {"sinks": torch.tensor([-torch.inf, 0.5]), "lse_includes_sink": True}
    out, lse = check(attend, call | prefix | sinks | {"atten_mask": mask})
    assert not out[0].any()
    assert lse[0].flatten().tolist() == [torch.inf, 0.5]


def test_empty_tensors_count_as_absent(attend: Attend) -> None:
    call = operands(2, 2, 1, 6)
    names = (
        "pse_shift",
        "atten_mask",
        "antiquant_scale",
        "antiquant_offset",
        "block_table",
        "kv_padding_size",
        "quant_scale2",
        "quant_offset2",
        "dequant_scale1",
        "quant_scale1",
        "dequant_scale2",
        "key_shared_prefix",
        "value_shared_prefix",
        "sinks",
        "metadata",
    )
    empty = {name: torch.empty(0) for name in names}
    out, lse = attend(**call | empty, actual_seq_lengths=[])
    wanted, wanted_lse = attend(**call)
    assert torch.equal(out, wanted)
    assert torch.equal(lse, wanted_lse)


def test_without_log_sum_exp_there_is_one_result(attend: Attend) -> None:
    call = operands(1, 2, 1, 6)
    out = attend(**call | {"return_softmax_lse": False})
    assert isinstance(out, torch.Tensor)
    assert torch.equal(out, attend(**call)[0])


@pytest.mark.parametrize("layout", ["BSH", "BSND", "BNSD"])
def test_strided_operands(attend: Attend, layout: str) -> None:
    call = operands(2, 4, 2, 9, tokens=2)
    axes = {"BNSD": (0, 1, 2, 3), "BSND": (0, 2, 1, 3), "BSH": (0, 2, 1, 3)}[layout]
    wanted, _ = attend(**call)
    strided = {"input_layout": layout}
    for name in ("query", "key", "value"):
        tensor = call[name].permute(axes)
        tensor = tensor.flatten(2) if layout == "BSH" else tensor
        wide = torch.full((*tensor.shape[:-1], tensor.shape[-1] + 8), torch.nan, dtype=f16)
        wide[..., :-8] = tensor
        strided[name] = wide[..., :-8]
    out, _ = attend(**call | strided)
    assert out.shape == strided["query"].shape
    out = out.unflatten(-1, (4, 16)) if layout == "BSH" else out
    torch.testing.assert_close(out, wanted.permute(axes))
