"""Every rule of ``incre_flash_attention``, one by one, without values to read."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from fa_triton.incremental import incre_flash_attention
from fa_triton.incremental_problem import IncreProblem
from fa_triton.validation.incremental import validate_incre_flash_attention
from tests.validation.calls import ints, tensor
from tests.validation.incre_calls import (
    bf16,
    dense,
    drafts,
    f32,
    hidden,
    i8,
    i64,
    int8,
    int8_pages,
    listed,
    padded,
    paged,
    prefixed,
    quantised,
)
from tests.validation.refusals import Refusal, assert_refused, unbuilt, wrong_type, wrong_value

u8, i32, boolean = torch.uint8, torch.int32, torch.bool


def strided(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return tensor(*shape[:-1], 2 * shape[-1], dtype=dtype)[..., ::2]


def cache(*shape: int, dtype: torch.dtype = torch.float16) -> dict[str, torch.Tensor]:
    return {"key": tensor(*shape, dtype=dtype), "value": tensor(*shape, dtype=dtype)}


OPERANDS = [
    wrong_type("query is no tensor", dense(query=[1.0]), "`query`", "list"),
    wrong_type(
        "query is float32", dense(query=tensor(2, 4, 1, 32, dtype=f32)), "`query`", "float32"
    ),
    unbuilt(
        "query is int8",
        dense(query=tensor(2, 4, 1, 32, dtype=i8)),
        "`query`",
        "int8 queries are not supported",
    ),
    wrong_value("query of rank 3 in BNSD", dense(query=tensor(2, 4, 32)), "`query`", "(2, 4, 32)"),
    wrong_value("query of rank 4 in BSH", hidden(query=tensor(2, 1, 4, 32)), "`query`", "N*D"),
    wrong_value("query without tokens", dense(query=tensor(2, 4, 0, 32)), "`query`", "empty axis"),
    wrong_value(
        "17 query tokens", dense(query=tensor(2, 4, 17, 32)), "`query`", "16", "17", "flash_attn"
    ),
    wrong_value("query is strided", dense(query=strided(2, 4, 1, 32)), "`query`", "contiguous()"),
    unbuilt(
        "query requires a gradient",
        dense(query=tensor(2, 4, 1, 32).requires_grad_()),
        "`query`",
        "gradient",
    ),
    *(
        wrong_value(
            f"D {dim}",
            dense(query=tensor(2, 4, 1, dim), **cache(2, 2, 40, dim)),
            "head dim of query",
            str(dim),
        )
        for dim in (8, 24, 528)
    ),
    wrong_value("no such layout", dense(input_layout="TND"), "`input_layout`", "BSH", "TND"),
    wrong_value("heads of the query differ", dense(num_heads=8), "`num_heads`", "4", "8"),
    wrong_value(
        "heads do not divide the columns",
        hidden(num_heads=5, num_key_value_heads=5),
        "`query`",
        "num_heads * D",
        "5",
    ),
    wrong_value("no heads", dense(num_heads=0), "`num_heads`", "1", "0"),
    wrong_value("B 65537", dense(query=tensor(65537, 4, 1, 32)), "query", "65536", "65537"),
    wrong_value("257 heads", dense(num_heads=257), "`num_heads`", "256"),
    wrong_type("heads as float", dense(num_heads=4.0), "`num_heads`", "int"),
    wrong_value("negative kv heads", dense(num_key_value_heads=-1), "`num_key_value_heads`"),
    wrong_value("kv heads do not divide", dense(num_key_value_heads=3), "`num_heads`", "4", "3"),
    wrong_value(
        "65 heads per kv head",
        dense(query=tensor(2, 65, 1, 32), num_heads=65, num_key_value_heads=1),
        "`num_heads`",
        "64",
        "65",
    ),
    wrong_value("too many sequences", dense(query=tensor(65536, 4, 1, 32)), "batch size"),
    wrong_type("key is None", dense(key=None), "`key`", "NoneType"),
    wrong_type("value is None", dense(value=None), "`value`", "NoneType"),
    wrong_type("key is float32", dense(key=tensor(2, 2, 40, 32, dtype=f32)), "`key`", "float32"),
    wrong_type("key is bfloat16", dense(key=tensor(2, 2, 40, 32, dtype=bf16)), "`key`", "bfloat16"),
    wrong_type("key is int8 alone", int8(value=tensor(2, 2, 40, 32)), "`value`", "int8"),
    *(
        unbuilt(
            f"int4 in {dtype}", dense(**cache(2, 2, 40, 4, dtype=dtype)), "`key`", "int4", "int8"
        )
        for dtype in (i32, u8)
    ),
    wrong_value("key of rank 3", dense(key=tensor(2, 40, 64)), "`key`", "block_table"),
    wrong_value("key has other heads", dense(**cache(2, 4, 40, 32)), "`key`", "2 heads", "4"),
    wrong_value("key has another D", dense(**cache(2, 2, 40, 48)), "`key`", "32", "48", "rope"),
    wrong_value("key has another batch", dense(**cache(3, 2, 40, 32)), "`key`", "batch size 2"),
    wrong_value("keys without tokens", dense(**cache(2, 2, 0, 32)), "`key`", "empty axis", "0"),
    wrong_value("value has other tokens", dense(value=tensor(2, 2, 41, 32)), "`value`", "key"),
    wrong_value("key is strided", dense(key=strided(2, 2, 40, 32)), "`key`", "contiguous()"),
    wrong_value("columns of no head", hidden(**cache(2, 40, 63)), "`key`", "num_key_value_heads"),
    wrong_value(
        "key on another device", dense(key=torch.empty(2, 2, 40, 32).half()), "`key`", "meta"
    ),
]

LISTS = [
    wrong_value("an empty list", listed(key=[]), "`key`", "empty list"),
    wrong_value(
        "a list of three",
        listed(**{n: [tensor(1, 2, 4, 32)] * 3 for n in ("key", "value")}),
        "`key`",
        "2",
        "3",
    ),
    wrong_value(
        "lists of different length", listed(value=[tensor(1, 2, 40, 32)]), "`value`", "key"
    ),
    wrong_value(
        "batch 2 in a list",
        listed(**{n: [tensor(2, 2, 4, 32)] * 2 for n in ("key", "value")}),
        "`key`",
        "batch size 1",
        "list",
    ),
    wrong_value("values of another size", listed(value=[tensor(1, 2, 40, 32)] * 2), "`value[1]`"),
    wrong_value(
        "a list of empty tensors",
        listed(**{n: [tensor(1, 2, 0, 32)] * 2 for n in ("key", "value")}),
        "`key`",
        "actual_seq_lengths of 0",
    ),
    wrong_value(
        "a list of several token strides",
        listed(value=[tensor(1, 40, 2, 32).transpose(1, 2), tensor(1, 2, 9, 32)]),
        "`value`",
        "32, 64",
        ".contiguous()",
    ),
    wrong_type("a list of numbers", listed(key=[1, 2]), "`key[0]`", "int"),
    wrong_type(
        "a list of two dtypes",
        listed(
            **{
                name: [tensor(1, 2, 4, 32), tensor(1, 2, 4, 32, dtype=i8)]
                for name in ("key", "value")
            }
        ),
        "`key`",
        "one dtype",
    ),
    wrong_value(
        "a list with pages", listed(block_table=ints(2, 3)), "`key`", "block_table", "list"
    ),
    wrong_value(
        "a list of 257",
        listed(
            query=tensor(257, 4, 1, 32),
            **{name: [tensor(1, 2, 4, 32)] * 257 for name in ("key", "value")},
        ),
        "`key`",
        "256",
        "257",
    ),
]

PAGES = [
    wrong_value("pages of rank 2", paged(**cache(7, 32)), "`key`", "(P, page, Nkv*D)"),
    wrong_value("fractals of 32", paged(**cache(7, 2, 1, 32, 32)), "`key`", "16"),
    wrong_value("pages of 24", paged(**cache(7, 24, 64)), "page size", "16", "24"),
    wrong_value("pages of 1040", paged(**cache(7, 1040, 64)), "page size", "1024"),
    wrong_value(
        "int8 pages of 48", int8_pages(**cache(7, 48, 64, dtype=i8)), "page size", "32", "48"
    ),
    wrong_value("table of other rows", paged(block_table=ints(3, 3)), "`block_table`", "(2,"),
    wrong_type(
        "table of int64", paged(block_table=tensor(2, 3, dtype=i64)), "`block_table`", "int32"
    ),
    wrong_value("table of rank 1", paged(block_table=ints(6)), "`block_table`", "(6,)"),
    wrong_value("pages without lengths", paged(actual_seq_lengths=None), "`actual_seq_lengths`"),
    wrong_value("another block size", paged(block_size=64), "`block_size`", "32", "64"),
    wrong_value("block size without pages", dense(block_size=32), "`block_size`", "block_table"),
    wrong_value("negative block size", paged(block_size=-1), "`block_size`"),
    wrong_value("a length past the table", paged(actual_seq_lengths=[97, 9]), "96", "97"),
]

LENGTHS = [
    wrong_value("negative", dense(actual_seq_lengths=[40, -1]), "`actual_seq_lengths[1]`", "-1"),
    wrong_value("past S", dense(actual_seq_lengths=[41, 2]), "`actual_seq_lengths[0]`", "40", "41"),
    wrong_value("past the own tensor", listed(actual_seq_lengths=[40, 10]), "[1]`", "9", "10"),
    wrong_value("one for all past one tensor", listed(actual_seq_lengths=[10]), "[1]`", "9", "10"),
    wrong_value(
        "too few",
        dense(query=tensor(3, 4, 1, 32), **cache(3, 2, 40, 32), actual_seq_lengths=[1, 2]),
        "`actual_seq_lengths`",
        "3",
        "2",
    ),
    wrong_type("a number", dense(actual_seq_lengths=40), "`actual_seq_lengths`", "int"),
    wrong_type("a string", dense(actual_seq_lengths="40"), "`actual_seq_lengths`", "str"),
    wrong_type(
        "a list of tensors",
        dense(actual_seq_lengths=list(torch.tensor([40, 3]))),
        "`actual_seq_lengths[0]`",
        "a tensor",
        ".tolist()",
    ),
    wrong_type("floats", dense(actual_seq_lengths=[40.0, 3.0]), "`actual_seq_lengths[0]`", "float"),
    wrong_type(
        "a float tensor", dense(actual_seq_lengths=tensor(2)), "`actual_seq_lengths`", "int64"
    ),
    wrong_value("a tensor of rank 2", dense(actual_seq_lengths=ints(2, 1)), "`actual_seq_lengths`"),
    wrong_value(
        "a tensor on another device",
        dense(actual_seq_lengths=torch.tensor([3, 4])),
        "`actual_seq_lengths`",
        "meta",
    ),
    wrong_value(
        "too short a tensor",
        dense(query=tensor(3, 4, 1, 32), **cache(3, 2, 40, 32), actual_seq_lengths=ints(2)),
        "`actual_seq_lengths`",
        "(2,)",
    ),
    wrong_type("int32 padding", padded(kv_padding_size=ints(1)), "`kv_padding_size`", "int64"),
    wrong_value(
        "padding of each", padded(kv_padding_size=tensor(2, dtype=i64)), "`kv_padding_size`"
    ),
    wrong_type("padding as int", padded(kv_padding_size=3), "`kv_padding_size`", "int"),
    wrong_value(
        "padding on another device",
        padded(kv_padding_size=torch.tensor([3])),
        "`kv_padding_size`",
        "meta",
    ),
    wrong_value(
        "padding without lengths",
        padded(actual_seq_lengths=None),
        "`actual_seq_lengths`",
        "kv_padding_size",
    ),
    wrong_value(
        "padding with pages",
        paged(kv_padding_size=tensor(1, dtype=i64)),
        "`kv_padding_size`",
        "block_table",
        "leave the padding out",
    ),
    wrong_value(
        "padding with a list",
        listed(kv_padding_size=tensor(1, dtype=i64), actual_seq_lengths=[4, 4]),
        "`kv_padding_size`",
        "list",
        "cut the padding",
    ),
]

MASKS = [
    wrong_type("float mask", dense(atten_mask=tensor(2, 40)), "`atten_mask`", "bool", "float16"),
    wrong_value(
        "mask of other rows", dense(atten_mask=tensor(3, 40, dtype=u8)), "`atten_mask`", "(3,"
    ),
    wrong_value("mask of rank 1", dense(atten_mask=tensor(40, dtype=u8)), "`atten_mask`", "(40,)"),
    wrong_value(
        "mask of rank 5",
        dense(atten_mask=tensor(2, 1, 1, 1, 40, dtype=u8)),
        "`atten_mask`",
        "(2, 1, 1, 1, 40)",
    ),
    wrong_value(
        "short mask", dense(atten_mask=tensor(2, 39, dtype=u8)), "`atten_mask`", "40", "39"
    ),
    wrong_value(
        "mask shorter than the longest",
        dense(atten_mask=tensor(2, 30, dtype=u8), actual_seq_lengths=[31, 2]),
        "`atten_mask`",
        "31",
        "30",
    ),
    wrong_value(
        "mask of a padded call",
        padded(atten_mask=tensor(2, 39, dtype=u8)),
        "`atten_mask`",
        "40",
    ),
    wrong_value(
        "mask without the prefix",
        prefixed(atten_mask=tensor(2, 44, dtype=u8)),
        "`atten_mask`",
        "45",
        "44",
    ),
    wrong_value(
        "mask of pages with lengths on the device",
        paged(actual_seq_lengths=ints(2), atten_mask=tensor(2, 95, dtype=u8)),
        "`atten_mask`",
        "96",
    ),
    wrong_value(
        "tree of other tokens",
        drafts(atten_mask=tensor(2, 1, 4, 40, dtype=boolean)),
        "`atten_mask`",
        "(1 or 2, 1 or 4, 3, S')",
    ),
    wrong_value(
        "tree of rank 3", drafts(atten_mask=tensor(2, 3, 40, dtype=boolean)), "`atten_mask`"
    ),
    wrong_value(
        "strided mask", dense(atten_mask=strided(2, 40, dtype=u8)), "`atten_mask`", "dense"
    ),
    wrong_type("bias of float32", dense(pse_shift=tensor(2, 4, 1, 40, dtype=f32)), "`pse_shift`"),
    wrong_value("bias of kv heads", dense(pse_shift=tensor(2, 2, 1, 40)), "`pse_shift`", "4"),
    wrong_value("bias of rank 3", dense(pse_shift=tensor(2, 4, 40)), "`pse_shift`"),
    wrong_value("bias of two rows", drafts(pse_shift=tensor(2, 4, 2, 40)), "`pse_shift`", "3 rows"),
    wrong_value(
        "short bias",
        dense(pse_shift=tensor(1, 4, 1, 39), actual_seq_lengths=[1]),
        "`pse_shift`",
        "40",
        "39",
    ),
    unbuilt(
        "bias requires a gradient",
        dense(pse_shift=tensor(1, 4, 1, 40).requires_grad_()),
        "`pse_shift`",
        "gradient",
    ),
]

SCALES = [
    wrong_value("no scale", int8(antiquant_scale=None), "`antiquant_scale`", "int8", "None"),
    wrong_value(
        "a scale of a float cache",
        dense(antiquant_scale=tensor(2)),
        "`antiquant_scale`",
        "int8 cache",
    ),
    wrong_value(
        "an offset of a float cache", dense(antiquant_offset=tensor(2)), "`antiquant_offset`"
    ),
    wrong_value(
        "a mode of a float cache",
        dense(antiquant_mode="per_token"),
        "`antiquant_mode`",
        "per_token",
    ),
    wrong_value("one scale", int8(antiquant_scale=tensor(1)), "`antiquant_scale`", "(2,)", "(1,)"),
    wrong_value("scales of N heads", int8(antiquant_scale=tensor(2, 4, 32)), "`antiquant_scale`"),
    wrong_type(
        "scales in float32",
        int8(antiquant_scale=tensor(2, 2, 1, 32, dtype=f32)),
        "`antiquant_scale`",
        "float16",
        "per_channel",
    ),
    wrong_type(
        "scales per token in float16",
        int8_pages(antiquant_scale=tensor(2, 7, 32)),
        "`antiquant_scale`",
        "float32",
        "per_token",
    ),
    wrong_value(
        "offset of another shape",
        int8(antiquant_offset=tensor(2, 2, 32)),
        "`antiquant_offset`",
        "(2, 2, 1, 32)",
    ),
    wrong_type(
        "offset of another dtype",
        int8(antiquant_offset=tensor(2, 2, 1, 32, dtype=f32)),
        "`antiquant_offset`",
    ),
    wrong_value(
        "no such mode", int8(antiquant_mode="per_head"), "`antiquant_mode`", "per_token_head"
    ),
    wrong_value(
        "a shape of another mode",
        int8(antiquant_mode="per_token"),
        "`antiquant_scale`",
        "(2, 2, S' >= 40)",
        "(2, 2, 1, 32)",
    ),
    wrong_value(
        "scales of too few tokens",
        int8(antiquant_scale=tensor(2, 2, 39, dtype=f32), antiquant_mode="per_token"),
        "`antiquant_scale`",
        "40",
    ),
    wrong_value(
        "a shape of two modes",
        int8(
            **cache(2, 2, 20, 32, dtype=i8),
            antiquant_scale=tensor(2, 2, 32),
            antiquant_offset=None,
        ),
        "`antiquant_mode`",
        "per_channel and per_token",
        "None",
    ),
    wrong_value(
        "scales of other pages",
        int8_pages(antiquant_scale=tensor(2, 6, 32, dtype=f32)),
        "(2, 7, 32)",
    ),
    wrong_value(
        "offset of the result alone",
        dense(quant_offset2=tensor(1, dtype=f32)),
        "`quant_scale2`",
        "quant_offset2",
    ),
    wrong_type("half scale of the result", quantised(quant_scale2=tensor(1)), "`quant_scale2`"),
    wrong_type(
        "bfloat16 scale of a half result",
        quantised(quant_scale2=tensor(1, dtype=bf16)),
        "`quant_scale2`",
        "float32",
    ),
    wrong_value(
        "scales of kv heads",
        quantised(quant_scale2=tensor(64, dtype=f32)),
        "`quant_scale2`",
        "128",
        "64",
    ),
    wrong_type(
        "offset of another dtype than the scale",
        quantised(
            query=tensor(2, 4, 1, 32, dtype=bf16),
            **cache(2, 2, 40, 32, dtype=bf16),
            quant_offset2=tensor(1, dtype=bf16),
        ),
        "`quant_offset2`",
        "float32",
    ),
    wrong_value(
        "offset of another shape than the scale",
        quantised(quant_offset2=tensor(128, dtype=f32)),
        "`quant_offset2`",
    ),
    *(
        wrong_value(
            f"{name} is given", dense(**{name: tensor(1, dtype=f32)}), f"`{name}`", "int8 quer"
        )
        for name in ("dequant_scale1", "quant_scale1", "dequant_scale2")
    ),
]

OPTIONS = [
    wrong_value("inner_precise 2", dense(inner_precise=2), "`inner_precise`", "0", "1", "2"),
    wrong_value("infinite scale", dense(scale_value=math.inf), "`scale_value`"),
    wrong_type("scale as text", dense(scale_value="1"), "`scale_value`"),
    wrong_value("no such row", dense(masked_row="nan"), "`masked_row`", "zero", "mean", "nan"),
    wrong_value("negative cap", dense(softcap=-1.0), "`softcap`"),
    wrong_value(
        "cap below the scale", dense(softcap=1e-6, scale_value=1e34), "`softcap`", "scale_value"
    ),
    wrong_value("window of -2", dense(win_left=-2), "`win_left`"),
    wrong_type("sinks in half", dense(sinks=tensor(4)), "`sinks`", "float32"),
    wrong_value("sinks of kv heads", dense(sinks=tensor(2, dtype=f32)), "`sinks`", "(4,)"),
    wrong_type("lse as text", dense(return_softmax_lse="yes"), "`return_softmax_lse`"),
    wrong_type("plan in int64", dense(metadata=tensor(64, dtype=i64)), "`metadata`"),
    wrong_value(
        "a plan of two words", dense(metadata=ints(2)), "`metadata`", "flash_attn_metadata"
    ),
    wrong_value(
        "half a prefix", prefixed(value_shared_prefix=None), "`value_shared_prefix`", "None"
    ),
    wrong_value(
        "prefix of every sequence",
        prefixed(**{f"{n}_shared_prefix": tensor(2, 2, 5, 32) for n in ("key", "value")}),
        "`key_shared_prefix`",
        "(1, 2, Sp, 32)",
    ),
    wrong_value(
        "prefixes of two lengths",
        prefixed(value_shared_prefix=tensor(1, 2, 6, 32)),
        "`value_shared_prefix`",
    ),
    wrong_type(
        "prefix of another dtype than the keys",
        int8(**{f"{n}_shared_prefix": tensor(1, 2, 5, 32) for n in ("key", "value")}),
        "`key_shared_prefix`",
        "int8",
    ),
    wrong_value("mean with a prefix", prefixed(masked_row="mean"), "`masked_row`", "prefix"),
    unbuilt("window over a prefix", prefixed(win_left=4), "`win_left`", "atten_mask"),
    wrong_value(
        "scales per token with a prefix",
        int8_pages(
            **{f"{n}_shared_prefix": tensor(1, 2, 5, 32, dtype=i8) for n in ("key", "value")}
        ),
        "`antiquant_mode`",
        "per_channel",
    ),
]

RULES = [*OPERANDS, *LISTS, *PAGES, *LENGTHS, *MASKS, *SCALES, *OPTIONS]


@pytest.mark.parametrize("refusal", RULES, ids=str)
def test_broken_rules_are_refused(refusal: Refusal) -> None:
    assert_refused(validate_incre_flash_attention, refusal)


def test_rules_are_checked_before_anything_else() -> None:
    # also on the meta device, where nothing could be computed
    for refusal in (OPERANDS[1], LENGTHS[0], MASKS[0]):
        assert_refused(incre_flash_attention, refusal)


def valid(**call: Any) -> IncreProblem:
    return validate_incre_flash_attention(**call)


ACCEPTED = {
    "BSND": dense(query=tensor(2, 1, 4, 32), **cache(2, 40, 2, 32), input_layout="BSND"),
    "BSH": hidden(),
    "heads of the query for keys": dense(**cache(2, 4, 40, 32), num_key_value_heads=0),
    "B 65536": dense(query=tensor(65536, 4, 1, 32), **cache(65536, 2, 1, 32)),
    "D 512": dense(query=tensor(2, 4, 1, 512), **cache(2, 2, 40, 512)),
    "64 heads per kv head": dense(
        query=tensor(2, 64, 1, 32), **cache(2, 1, 40, 32), num_heads=64, num_key_value_heads=1
    ),
    "strides": dense(key=tensor(2, 2, 40, 64)[..., :32]),
    "list": listed(actual_seq_lengths=[0, 9]),
    "list of one": dense(**{name: [tensor(2, 2, 40, 32)] for name in ("key", "value")}),
    "pages of heads": paged(**cache(7, 2, 32, 32)),
    "pages of fractals": paged(**cache(7, 2, 2, 32, 16)),
    "pages of BSH": hidden(
        **cache(7, 2, 32, 32), block_table=ints(2, 3), actual_seq_lengths=[96, 0], block_size=32
    ),
    "pages of 1024": paged(**cache(7, 1024, 64)),
    "one length": dense(actual_seq_lengths=[3]),
    "more lengths than sequences": dense(actual_seq_lengths=[3, 4, 99]),
    "lengths in numpy": dense(actual_seq_lengths=np.array([3, 4])),
    "lengths on the device": dense(actual_seq_lengths=ints(2)),
    "a length on the device": listed(actual_seq_lengths=tensor(1, dtype=i64)),
    "more lengths on the device": dense(actual_seq_lengths=ints(5)),
    "no lengths": dense(actual_seq_lengths=[]),
    "masks of heads": dense(atten_mask=tensor(1, 4, 1, 40, dtype=u8)),
    "a mask of the longest": dense(
        atten_mask=tensor(2, 1, 31, dtype=u8), actual_seq_lengths=[31, 2]
    ),
    "an expanded mask": dense(atten_mask=tensor(1, 40, dtype=u8).expand(2, -1)),
    "tree": drafts(atten_mask=tensor(2, 1, 3, 40, dtype=boolean)),
    "one tree for all": drafts(atten_mask=tensor(1, 1, 3, 40, dtype=boolean)),
    "trees of heads": drafts(atten_mask=tensor(2, 4, 3, 40, dtype=boolean)),
    "one tree per head": drafts(atten_mask=tensor(1, 4, 3, 40, dtype=boolean)),
    "a list with an empty tensor": listed(
        **{n: [tensor(1, 2, 40, 32), tensor(1, 2, 0, 32)] for n in ("key", "value")}
    ),
    # the stride of an axis of one says nothing
    "a list with a tensor of one key": listed(
        **{n: [tensor(1, 2, 40, 32), tensor(1, 1, 2, 32).transpose(1, 2)] for n in ("key", "value")}
    ),
    "a bias per token": drafts(pse_shift=tensor(1, 4, 3, 40)),
    "a bias of the prefix": prefixed(pse_shift=tensor(2, 4, 1, 45)),
    "padding": padded(atten_mask=tensor(2, 40, dtype=u8)),
    "scale per tensor": int8(antiquant_scale=tensor(2), antiquant_offset=None),
    "scales of columns": int8(antiquant_scale=tensor(2, 64), antiquant_offset=tensor(2, 64)),
    "scales per token": int8(antiquant_scale=tensor(2, 2, 40, dtype=f32), antiquant_offset=None),
    "int8 pages": int8_pages(),
    "int8 pages, scales per head": int8_pages(antiquant_scale=tensor(2, 7, 2, 32, dtype=f32)),
    "int8 prefix": int8(
        **{f"{name}_shared_prefix": tensor(1, 2, 5, 32, dtype=i8) for name in ("key", "value")}
    ),
    "int8 result": quantised(),
    "int8 result per column": dense(quant_scale2=tensor(1, 4, 1, 32, dtype=f32)),
    "sinks": dense(sinks=tensor(4, dtype=f32), softcap=3.0, win_left=7),
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_valid_calls(name: str) -> None:
    call = ACCEPTED[name]
    assert valid(**call).out_shape == tuple(call["query"].shape)


def test_an_ambiguous_shape_takes_the_mode_that_is_named() -> None:
    call = int8(**cache(2, 2, 20, 32, dtype=i8), antiquant_offset=None)
    by_channel = valid(**call | {"antiquant_scale": tensor(2, 2, 32)}, antiquant_mode="per_channel")
    by_token = valid(
        **call | {"antiquant_scale": tensor(2, 2, 32, dtype=f32)}, antiquant_mode="per_token"
    )
    assert (by_channel.quant, by_token.quant) == ("per_channel", "per_token")


def test_fields_of_a_dense_call() -> None:
    problem = valid(**hidden(scale_value=0.5, return_softmax_lse=True))
    attn = problem.attn
    assert (attn.batch_size, attn.seqlen_q, attn.seqlen_kv) == (2, 1, 40)
    assert (attn.num_heads_q, attn.num_heads_kv, attn.head_dim, attn.head_dim_v) == (4, 2, 32, 32)
    assert (attn.layout_q, attn.layout_kv, attn.layout_out) == ("BSND", "BSND", "BSND")
    assert (attn.mask_mode, attn.has_seqused_kv, attn.page_size) == (0, False, 0)
    assert attn.lse_shape == (2, 4, 1)
    assert problem.out_shape == (2, 1, 128)
    assert problem.out_dtype == torch.float16
    assert (problem.host_lengths, problem.has_device_lengths) == (None, False)
    assert (problem.mask_form, problem.quant, problem.output_quant) == (None, None, None)
    assert hash(problem) == hash(valid(**hidden(scale_value=0.5, return_softmax_lse=True)))


def test_fields_of_pages_lists_and_lengths() -> None:
    problem = valid(**paged(actual_seq_lengths=ints(1)))
    assert (problem.attn.layout_kv, problem.attn.page_size, problem.attn.seqlen_kv) == (
        "PA_BBND",
        32,
        96,
    )
    assert (problem.has_device_lengths, problem.broadcasts_lengths) == (True, True)
    problem = valid(**listed())
    assert (problem.is_list, problem.list_lengths, problem.attn.seqlen_kv) == (True, (40, 9), 40)
    assert problem.attn.has_seqused_kv
    assert problem.rooms == (40, 9)
    assert valid(**dense(actual_seq_lengths=[7])).host_lengths == (7, 7)
    assert valid(**dense(actual_seq_lengths=[7, 8, 9])).host_lengths == (7, 8)


@pytest.mark.parametrize(
    ("changes", "window", "mode"),
    [
        ({}, (-1, 0), 3),
        ({"win_left": 5}, (5, 0), 4),
        ({"atten_mask": tensor(2, 1, 3, 40, dtype=boolean)}, (-1, -1), 0),
        ({"atten_mask": tensor(2, 1, 3, 40, dtype=boolean), "win_left": 5}, (5, -1), 4),
        ({"atten_mask": tensor(2, 1, 1, 40, dtype=boolean)}, (-1, 0), 3),
        ({"win_left": 2**30}, (-1, 0), 3),
    ],
)
def test_masks_by_position(changes: dict[str, Any], window: tuple[int, int], mode: int) -> None:
    attn = valid(**drafts(**changes)).attn
    assert (attn.window, attn.mask_mode) == (window, mode)


@pytest.mark.parametrize(
    ("shape", "form"),
    [
        ((2, 40), "per_sequence"),
        ((2, 1, 40), "per_sequence"),
        ((2, 1, 1, 40), "per_sequence"),
        ((2, 4, 1, 40), "per_head"),
        ((1, 4, 1, 40), "per_head"),
        ((2, 1, 3, 40), "per_query"),
        ((1, 1, 3, 40), "per_query"),
        ((2, 4, 3, 40), "per_query"),
        ((1, 4, 3, 40), "per_query"),
    ],
)
def test_forms_of_masks(shape: tuple[int, ...], form: str) -> None:
    assert valid(**drafts(atten_mask=tensor(*shape, dtype=u8))).mask_form == form
