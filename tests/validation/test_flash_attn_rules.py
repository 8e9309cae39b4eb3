"""Every rule of ``flash_attn`` that can be checked without reading a tensor, one by one."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fa_triton.validation import validate_flash_attn
from tests.validation.calls import dense, floats, ints, packed, paged, template, tensor
from tests.validation.refusals import Refusal, assert_refused, unbuilt, wrong_type, wrong_value

VENDOR_RULES = json.loads((Path(__file__).parent / "data" / "vendor_rules.json").read_text())

half, bf16, f32 = torch.float16, torch.bfloat16, torch.float32

LAYOUT_RULES = [
    wrong_value("unknown layout_q", dense(layout_q="BSH"), "`layout_q`", "BSND, BNSD, TND", "BSH"),
    wrong_value("lower-case layout", dense(layout_q="bsnd"), "`layout_q`", "'bsnd'"),
    wrong_value("unknown layout_kv", dense(layout_kv="SBND"), "`layout_kv`", "PA_NZ", "'SBND'"),
    wrong_value("unknown layout_out", dense(layout_out="NBSD"), "`layout_out`", "'NBSD'"),
    wrong_value("paged layout_q", dense(layout_q="PA_BBND"), "`layout_q`", "'PA_BBND'"),
    wrong_value("paged layout_out", dense(layout_out="PA_BBND"), "`layout_out`", "'PA_BBND'"),
    wrong_type("layout is None", dense(layout_q=None), "`layout_q`", "NoneType"),
    *(
        wrong_value(
            f"{layout_kv} keys with {layout_q} queries",
            dense(layout_q=layout_q, layout_kv=layout_kv, layout_out=layout_q),
            "`layout_kv`",
            repr(layout_q),
            repr(layout_kv),
        )
        for layout_q in ("BSND", "BNSD", "TND")
        for layout_kv in ("BSND", "BNSD", "TND")
        if layout_q != layout_kv
    ),
    *(
        wrong_value(
            f"{layout_q} to {layout_out}",
            dense(layout_q=layout_q, layout_kv=layout_q, layout_out=layout_out),
            "`layout_out`",
            repr(layout_q),
            repr(layout_out),
        )
        for layout_q, layout_out in (
            ("BSND", "BNSD"),
            ("BSND", "TND"),
            ("BNSD", "TND"),
            ("TND", "BSND"),
            ("TND", "BNSD"),
        )
    ),
]

OPERAND_RULES = [
    wrong_type("q is no tensor", dense(q=[1.0]), "`q`", "torch.Tensor", "list"),
    wrong_type("q in float64", dense(q=tensor(2, 8, 4, 64, dtype=torch.float64)), "`q`", "float64"),
    wrong_type("k in int8", dense(k=tensor(2, 16, 2, 64, dtype=torch.int8)), "`k`", "int8"),
    wrong_type(
        "k of another dtype",
        dense(k=tensor(2, 16, 2, 64, dtype=bf16)),
        "`k`",
        "float16",
        "bfloat16",
    ),
    wrong_type("v of another dtype", dense(v=tensor(2, 16, 2, 64, dtype=f32)), "`v`", "float32"),
    wrong_value("q of rank 3", dense(q=tensor(16, 4, 64)), "`q`", "4 axes", "(16, 4, 64)"),
    wrong_value("k of rank 5", dense(k=tensor(2, 16, 2, 4, 16)), "`k`", "4 axes"),
    wrong_value("packed q of rank 4", packed(q=tensor(1, 20, 4, 64)), "`q`", "3 axes"),
    wrong_value("empty batch", dense(q=tensor(0, 8, 4, 64)), "`q`", "empty", "(0, 8, 4, 64)"),
    wrong_value("no queries", dense(q=tensor(2, 0, 4, 64)), "`q`", "empty"),
    wrong_value("no heads", dense(q=tensor(2, 8, 0, 64)), "`q`", "empty"),
    wrong_value("no keys", dense(k=tensor(2, 0, 2, 64)), "`k`", "empty"),
    wrong_value("no head dim of v", dense(v=tensor(2, 16, 2, 0)), "`v`", "empty"),
    wrong_value("no packed tokens", packed(q=tensor(0, 4, 64)), "`q`", "empty"),
    wrong_value(
        "strided last axis",
        dense(k=tensor(2, 16, 64, 2).transpose(2, 3)),
        "`k`",
        "stride 1",
        "k.contiguous()",
    ),
    wrong_value(
        "expanded last axis", dense(v=tensor(2, 16, 2, 1).expand(-1, -1, -1, 64)), "`v`", "stride 1"
    ),
    wrong_value(
        "tokens of a tile too far apart",
        dense(k=torch.empty_strided((2, 16, 2, 64), (2, 2**28, 64, 1), dtype=half, device="meta")),
        "`k`",
        "2^31",
        str(2**28),
        "k.contiguous()",
    ),
    wrong_value(
        "k on another device",
        dense(k=torch.empty(2, 16, 2, 64, dtype=half)),
        "`k`",
        "meta",
        "cpu",
    ),
    wrong_value(
        "v on another device", dense(v=torch.empty(2, 16, 2, 64, dtype=half)), "`v`", "meta", "cpu"
    ),
    wrong_value("sparse q", dense(q=torch.zeros(2, 8, 4, 64).to_sparse()), "`q`", "strided"),
    wrong_value(
        "nested q",
        dense(
            q=torch.nested.nested_tensor(
                [torch.zeros(3, 64), torch.zeros(5, 64)], layout=torch.jagged
            )
        ),
        "`q`",
        "nested",
        "TND",
    ),
    wrong_value("k of another head dim", dense(k=tensor(2, 16, 2, 128)), "`k`", "64", "128"),
    wrong_value("v shorter than k", dense(v=tensor(2, 15, 2, 64)), "`v`", "agree with k", "15"),
    wrong_value("v with other heads", dense(v=tensor(2, 16, 1, 64)), "`v`", "agree with k"),
    wrong_value("v with another batch", dense(v=tensor(1, 16, 2, 64)), "`v`", "agree with k"),
    wrong_value(
        "heads no multiple", dense(q=tensor(2, 8, 5, 64)), "heads of q", "multiple", "5 and 2"
    ),
    wrong_value("fewer heads than keys", dense(q=tensor(2, 8, 1, 64)), "heads of q", "1 and 2"),
    wrong_value("batch of q and k", dense(q=tensor(3, 8, 4, 64)), "batch size", "3 from q", "2"),
    *(
        wrong_value(
            f"head dim {dim}",
            dense(q=tensor(2, 8, 4, dim), k=tensor(2, 16, 2, dim)),
            "head dim of q",
            str(dim),
        )
        for dim in (1, 4, 15, 60, 100, 264, 512)
    ),
    wrong_value("head dim of v", dense(v=tensor(2, 16, 2, 63)), "head dim of v", "63"),
    wrong_value(
        "65536 sequences",
        dense(q=tensor(65536, 1, 4, 64), k=tensor(65536, 1, 2, 64), v=tensor(65536, 1, 2, 64)),
        "65535",
        "65536",
    ),
]

LENGTH_RULES = [
    wrong_value("packed q alone", packed(cu_seqlens_q=None), "`cu_seqlens_q`", "TND", "None"),
    wrong_value("packed keys alone", packed(cu_seqlens_kv=None), "`cu_seqlens_kv`", "None"),
    wrong_value("dense q packed", dense(cu_seqlens_q=ints(3)), "`cu_seqlens_q`", "None", "BSND"),
    wrong_value("dense keys packed", dense(cu_seqlens_kv=ints(3)), "`cu_seqlens_kv`", "None"),
    wrong_value("pages packed", paged(cu_seqlens_kv=ints(3)), "`cu_seqlens_kv`", "PA_BBND"),
    wrong_type("cu in int64", packed(cu_seqlens_q=tensor(4, dtype=torch.int64)), "int32", "int64"),
    wrong_type("cu is a list", packed(cu_seqlens_q=[0, 8, 20]), "`cu_seqlens_q`", "list"),
    wrong_value("cu of rank 2", packed(cu_seqlens_kv=ints(4, 1)), "(B + 1,)", "(4, 1)"),
    wrong_value("empty cu", packed(cu_seqlens_q=ints(0)), "`cu_seqlens_q`", "(0,)"),
    wrong_value("cu of no sequence", packed(cu_seqlens_q=ints(1)), "batch size", "got 0"),
    wrong_value("cu of two batches", packed(cu_seqlens_q=ints(6)), "batch size", "5", "3"),
    wrong_value("cu strided", packed(cu_seqlens_q=ints(4, 2)[:, 0]), "contiguous", "(2,)"),
    wrong_value(
        "cu on another device",
        packed(cu_seqlens_q=torch.zeros(4, dtype=torch.int32)),
        "`cu_seqlens_q`",
        "meta",
        "cpu",
    ),
    wrong_type("used in int64", dense(seqused_q=tensor(2, dtype=torch.int64)), "int32", "int64"),
    wrong_value("used of rank 2", dense(seqused_kv=ints(2, 1)), "`seqused_kv`", "(B,)", "(2, 1)"),
    wrong_value("used of another batch", dense(seqused_kv=ints(3)), "batch size", "2", "3"),
    wrong_value("used q of another batch", dense(seqused_q=ints(1)), "batch size", "2", "1"),
    wrong_value("used and packed", packed(seqused_kv=ints(4)), "`seqused_kv`", "(3,)", "got (4,)"),
    wrong_value("used empty", dense(seqused_q=ints(0)), "`seqused_q`", "(0,)"),
    wrong_value(
        "used on another device",
        dense(seqused_q=torch.zeros(2, dtype=torch.int32)),
        "`seqused_q`",
        "meta",
        "cpu",
    ),
    wrong_value("max_seqlen_q", dense(max_seqlen_q=-2), "`max_seqlen_q`", "-1", "-2"),
    wrong_value("max_seqlen_kv", packed(max_seqlen_kv=-5), "`max_seqlen_kv`", "-5"),
    wrong_value("bound below Sq", dense(max_seqlen_q=7), "`max_seqlen_q`", "8", "got 7"),
    wrong_value("bound below Skv", dense(max_seqlen_kv=15), "`max_seqlen_kv`", "16", "got 15"),
    wrong_type("bound is a float", dense(max_seqlen_q=8.0), "`max_seqlen_q`", "float"),
]

MASK_RULES = [
    *(
        wrong_value(f"mask mode {mode}", dense(mask_mode=mode), "`mask_mode`", "0", "3", str(mode))
        for mode in (-1, 1, 2, 5, 6)
    ),
    wrong_type("mask mode is a bool", dense(mask_mode=True), "`mask_mode`", "bool"),
    wrong_type("mask mode is a name", dense(mask_mode="causal"), "`mask_mode`", "str"),
    wrong_value("left window, no mask", dense(win_left=3), "`win_left`", "mask_mode=0", "got 3"),
    wrong_value("right window, no mask", dense(win_right=0), "`win_right`", "mask_mode=0"),
    wrong_value("left window, causal", dense(mask_mode=3, win_left=0), "`win_left`", "mask_mode=3"),
    wrong_value("right window, causal", dense(mask_mode=3, win_right=1), "`win_right`", "got 1"),
    wrong_value("left window of -2", dense(mask_mode=4, win_left=-2), "`win_left`", "-1", "-2"),
    wrong_value("right window of -2", dense(mask_mode=4, win_right=-2), "`win_right`", "-2"),
    wrong_value("template, no mask", dense(attn_mask=template()), "`attn_mask`", "None"),
    wrong_value(
        "template of another shape",
        dense(mask_mode=3, attn_mask=template(shape=(1024, 1024))),
        "(2048, 2048)",
        "(1024, 1024)",
    ),
    wrong_value(
        "template of rank 1", dense(mask_mode=4, attn_mask=template(shape=(2048,))), "(2048,)"
    ),
    wrong_type(
        "template in bool", dense(mask_mode=3, attn_mask=template(torch.bool)), "int8", "bool"
    ),
    wrong_type("template is a list", dense(mask_mode=3, attn_mask=[0]), "`attn_mask`", "list"),
]

PAGE_RULES = [
    wrong_value("pages alone", paged(block_table=None), "`block_table`", "PA_BBND", "None"),
    wrong_value("table alone", dense(block_table=ints(2, 5)), "`block_table`", "None", "BSND"),
    wrong_value("pages without lengths", paged(seqused_kv=None), "`seqused_kv`", "PA_BBND"),
    wrong_type(
        "table in int64", paged(block_table=tensor(2, 5, dtype=torch.int64)), "int32", "int64"
    ),
    wrong_value("table of rank 1", paged(block_table=ints(10)), "`block_table`", "(10,)"),
    wrong_value("table of another batch", paged(block_table=ints(3, 5)), "(2, pages", "(3, 5)"),
    wrong_value("table of columns", paged(block_table=ints(5, 2).T), "`block_table`", "stride 1"),
    wrong_value("empty table", paged(block_table=ints(2, 0)), "`block_table`", "(2, 0)"),
    *(
        wrong_value(
            f"pages of {size}",
            paged(k=tensor(10, size, 2, 64), v=tensor(10, size, 2, 64)),
            "page size",
            f"got {size}",
        )
        for size in (8, 17, 1025, 2048)
    ),
    wrong_value(
        "fractals of 32",
        paged(k=tensor(10, 2, 2, 32, 32), v=tensor(10, 2, 2, 32, 32), layout_kv="PA_NZ"),
        "PA_NZ",
        "16",
    ),
    wrong_value("v with other pages", paged(v=tensor(9, 32, 2, 64)), "`v`", "agree with k"),
]

OPTION_RULES = [
    wrong_type("sinks in fp16", dense(sinks=tensor(4)), "`sinks`", "float32", "float16"),
    wrong_value("sinks per key head", dense(sinks=floats(2)), "`sinks`", "(4,)", "(2,)"),
    wrong_value("sinks of rank 2", dense(sinks=floats(4, 1)), "`sinks`", "(4, 1)"),
    wrong_value("sinks on another device", dense(sinks=torch.zeros(4)), "`sinks`", "meta", "cpu"),
    wrong_value("sinks strided", dense(sinks=floats(4, 2)[:, 1]), "`sinks`", "contiguous"),
    wrong_type("slopes in fp16", dense(alibi_slopes=tensor(4)), "`alibi_slopes`", "float32"),
    wrong_value("slopes of another shape", dense(alibi_slopes=floats(2, 4)), "`alibi_slopes`"),
    wrong_value("scale is infinite", dense(softmax_scale=float("inf")), "`softmax_scale`", "inf"),
    wrong_value("scale is NaN", dense(softmax_scale=float("nan")), "`softmax_scale`", "nan"),
    wrong_type("scale is None", dense(softmax_scale=None), "`softmax_scale`", "NoneType"),
    wrong_type("scale is a tensor", dense(softmax_scale=torch.ones(())), "`softmax_scale`"),
    wrong_value("scale is a huge int", dense(softmax_scale=10**400), "`softmax_scale`"),
    wrong_value("softcap is negative", dense(softcap=-1.0), "`softcap`", "-1.0"),
    wrong_value("softcap of a tiny number", dense(softcap=1e-45), "`softcap`", "1e-06", "1e-45"),
    wrong_value("softcap of a huge number", dense(softcap=1e31), "`softcap`", "1e+30", "1e+31"),
    wrong_value(
        "softcap too small for the scale",
        dense(softcap=1e-3, softmax_scale=1e37),
        "`softcap`",
        "float32",
        "1e+37",
    ),
    wrong_value("lse flag of 2", dense(return_softmax_lse=2), "`return_softmax_lse`", "got 2"),
    wrong_type("lse flag is None", dense(return_softmax_lse=None), "`return_softmax_lse`"),
    wrong_type("plan in int64", dense(metadata=tensor(64, dtype=torch.int64)), "`metadata`"),
    wrong_value("plan of rank 2", dense(metadata=ints(4, 16)), "`metadata`", "(4, 16)"),
    wrong_value("plan of one word", dense(metadata=ints(1)), "`metadata`", "16 words", "got 1"),
    wrong_value(
        "plan on another device",
        dense(metadata=torch.zeros(64, dtype=torch.int32)),
        "`metadata`",
        "meta",
        "cpu",
    ),
]

REFUSALS = [
    *LAYOUT_RULES,
    *OPERAND_RULES,
    *LENGTH_RULES,
    *MASK_RULES,
    *PAGE_RULES,
    *OPTION_RULES,
]


@pytest.mark.parametrize("refusal", REFUSALS, ids=str)
def test_refused(refusal: Refusal) -> None:
    assert_refused(validate_flash_attn, refusal)


@pytest.mark.parametrize("case", VENDOR_RULES["cases"], ids=lambda case: case["rule"])
def test_vendor_rule(case: dict[str, Any]) -> None:
    call: dict[str, Any] = dict(case["options"])
    for name, (shape, dtype) in case["tensors"].items():
        call[name] = tensor(*shape, dtype=getattr(torch, dtype))
    error = {"ValueError": ValueError, "TypeError": TypeError}[case["error"]]
    assert_refused(
        validate_flash_attn, Refusal(case["rule"], call, error, ("must", "got", case["says"]))
    )


def test_gradients_are_refused_only_where_they_are_recorded() -> None:
    call = dense(q=tensor(2, 8, 4, 64).requires_grad_())
    refusal = unbuilt("gradient", call, "forward only", "`q`", "no_grad", "q.detach()")
    assert_refused(validate_flash_attn, refusal)
    with torch.no_grad():
        validate_flash_attn(**call)
    with torch.inference_mode():
        validate_flash_attn(**call)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_quantised_tensors_are_refused() -> None:
    q = torch.quantize_per_tensor(torch.zeros(2, 8, 4, 64), 0.1, 0, torch.qint8)
    assert_refused(validate_flash_attn, wrong_type("", dense(q=q), "`q`", "float16", "qint8"))


def test_positional_options_are_refused() -> None:
    call = dense()
    with pytest.raises(TypeError):
        validate_flash_attn(call["q"], call["k"], call["v"], None)  # type: ignore[misc]


@pytest.mark.parametrize(
    "call",
    [
        dense(),
        packed(),
        dense(mask_mode=None, win_left=None, win_right=None, max_seqlen_q=None),
        dense(mask_mode=np.int64(3), max_seqlen_q=np.int32(8), softmax_scale=np.float32(0.5)),
        dense(softmax_scale=-1),
        dense(softmax_scale=0.0),
        dense(mask_mode=3, attn_mask=template()),
        dense(mask_mode=4, attn_mask=template(), win_left=0, win_right=5),
        dense(seqused_q=ints(2), seqused_kv=ints(2), max_seqlen_kv=3),
        dense(return_softmax_lse=1, lse_includes_sink=0),
        dense(metadata=ints(16)),
        packed(seqused_q=ints(3), seqused_kv=ints(3), max_seqlen_q=7, max_seqlen_kv=9),
        # Any strides but the last one, and K unlike V.
        dense(
            k=tensor(1, 1, 1, 64).expand(2, 16, 2, -1),
            v=tensor(2, 2, 16, 200)[..., 8:72].transpose(1, 2),
        ),
        dense(q=tensor(1, 8, 4, 64).expand(2, -1, -1, -1)),
        paged(),
        paged(layout_kv="PA_BNBD", k=tensor(10, 2, 32, 64), v=tensor(10, 2, 32, 64)),
        paged(layout_kv="PA_NZ", k=tensor(10, 2, 4, 32, 16), v=tensor(10, 2, 8, 32, 16)),
        # Rows of a wider table, as an engine keeps it.
        paged(block_table=ints(2, 9)[:, :5]),
        dense(softcap=30.0, alibi_slopes=floats(4)),
        dense(sinks=floats(4), lse_includes_sink=True),
        dense(q=tensor(2, 8, 4, 192), k=tensor(2, 16, 2, 192), v=tensor(2, 16, 2, 128)),
        dense(q=tensor(2, 8, 4, 8), k=tensor(2, 16, 2, 8), v=tensor(2, 16, 2, 8)),
    ],
)
def test_accepted(call: dict[str, Any]) -> None:
    validate_flash_attn(**call)


@pytest.mark.parametrize("dtype", [half, bf16, f32], ids=str)
@pytest.mark.parametrize("head_dim", [64, 128, 256])
def test_dtypes_and_head_dims(dtype: torch.dtype, head_dim: int) -> None:
    q = tensor(2, 8, 4, head_dim, dtype=dtype)
    k = tensor(2, 16, 2, head_dim, dtype=dtype)
    problem = validate_flash_attn(q, k, k)
    assert (problem.dtype, problem.head_dim, problem.head_dim_v) == (dtype, head_dim, head_dim)
