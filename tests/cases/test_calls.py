"""From a case to a call and its tensors: defaults, pages, strides, values."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fa_triton.cases.attention_call import describe_attention
from fa_triton.cases.call import CaseCall
from fa_triton.cases.case import AttentionCase, RuleCase
from fa_triton.cases.files import parse_case
from fa_triton.cases.rule_call import describe_rule, with_lengths
from fa_triton.cases.run import describe
from fa_triton.cases.tensors import make_arguments, meta_arguments
from fa_triton.validation import validate_flash_attn
from tests.cases.library import ATTENTION

CPU = torch.device("cpu")


def call(**fields: Any) -> CaseCall:
    case = parse_case(
        {"B": 2, "N1": 4, "S1": 8, "D": 64, "Dtype": "fp16", "layout_q": "BSND"} | fields
    )
    assert isinstance(case, AttentionCase)
    return describe_attention(case)


def test_defaults() -> None:
    made = call()
    assert made.q.shape == made.k.shape == made.v.shape == made.out_shape == (2, 8, 4, 64)
    assert made.q.value_range is None
    assert made.small == {}
    assert made.options == {
        "softmax_scale": 0.125,
        "mask_mode": 0,
        "win_left": -1,
        "win_right": -1,
        "layout_q": "BSND",
        "layout_kv": "BSND",
        "layout_out": "BSND",
        "return_softmax_lse": False,
    }


def test_sizes_of_keys_and_values() -> None:
    made = call(N2=2, S2=20, DV=32, layout_q="BNSD", layout_out="BSND", return_softmax_lse=1)
    assert made.q.shape == (2, 4, 8, 64)
    assert made.k.shape == (2, 2, 20, 64)
    assert made.v.shape == (2, 2, 20, 32)
    assert made.out_shape == (2, 8, 4, 32)
    assert made.lse_shape == (2, 4, 8)


@pytest.mark.parametrize("mask_mode", [0, 3])
def test_windows_count_in_mode_4_only(mask_mode: int) -> None:
    options = call(mask_mode=mask_mode, win_left=65536, win_right=65536).options
    assert (options["win_left"], options["win_right"]) == (-1, -1)


def test_windows_of_mode_4() -> None:
    options = call(mask_mode=4, win_left=2147483647, win_right=3).options
    assert (options["win_left"], options["win_right"]) == (-1, 3)


def test_masks_come_with_the_template() -> None:
    assert "attn_mask" not in call().small
    template = make_arguments(call(mask_mode=3), CPU)["attn_mask"]
    assert template.dtype == torch.int8
    assert torch.equal(template, torch.ones(2048, 2048, dtype=torch.int8).triu(1))


def test_starts_tell_the_batch_and_the_tokens() -> None:
    made = call(layout_q="TND", B=9, cu_seqlens_q=[0, 3, 3, 10], return_softmax_lse=True)
    assert made.q.shape == made.k.shape == (10, 4, 64)
    assert made.lse_shape == (4, 10)
    starts = made.lengths()
    assert starts["cu_seqlens_q"].tolist() == starts["cu_seqlens_kv"].tolist() == [0, 3, 3, 10]


@pytest.mark.parametrize(
    ("layout", "shape"),
    [
        ("PA_BBND", (5, 16, 2, 64)),
        ("PA_BNBD", (5, 2, 16, 64)),
        ("PA_NZ", (5, 2, 4, 16, 16)),
    ],
)
def test_pages_are_counted_through_and_unused_entries_are_minus_1(
    layout: str, shape: tuple[int, ...]
) -> None:
    made = call(
        B=3, N2=2, S2=40, layout_kv=layout, block_size=16, seqused_kv=[33, 0, 17],
        block_table_shape=[3, 4],
    )  # fmt: skip
    assert made.k.shape == made.v.shape == shape
    table = make_arguments(made, CPU)["block_table"]
    assert table.tolist() == [[0, 1, 2, -1], [-1, -1, -1, -1], [3, 4, -1, -1]]


def test_pages_without_lengths_are_full() -> None:
    made = call(S2=40, layout_kv="PA_BBND", block_size=16)
    arguments = make_arguments(made, CPU)
    assert arguments["seqused_kv"].tolist() == [40, 40]
    assert arguments["block_table"].tolist() == [[0, 1, 2], [3, 4, 5]]


def test_starts_of_keys_in_pages_are_lengths() -> None:
    made = call(
        layout_q="TND", cu_seqlens_q=[0, 3, 8], cu_seqlens_kv=[0, 20, 50], layout_kv="PA_BNBD",
        block_size=32,
    )  # fmt: skip
    assert set(made.lengths()) == {"cu_seqlens_q", "seqused_kv"}
    assert made.lengths()["seqused_kv"].tolist() == [20, 30]


def test_given_tables() -> None:
    shared: dict[str, Any] = {"layout_kv": "PA_BBND", "block_size": 16, "S2": 32}
    counted = call(**shared, block_table={"kind": "arange", "shape": [2, 3]})
    assert counted.k.shape[0] == 6
    assert make_arguments(counted, CPU)["block_table"].tolist() == [[0, 1, 2], [3, 4, 5]]
    listed = call(**shared, block_table=[[7, 1], [1, 0]])
    assert listed.k.shape[0] == 8


@pytest.mark.parametrize(
    ("layout", "nc_kv_dims", "dense"),
    [
        ("BNSD", 0, (False, True, True)),
        ("BNSD", [0, 1], (False, False, True)),
        ("PA_BNBD", [0, 1], (False, False, True)),
        ("PA_NZ", [0, 1], (False, False, True, True)),
        ("TND", 0, (False, True)),
    ],
)
def test_strides_are_wider_and_gaps_are_nan(
    layout: str, nc_kv_dims: Any, dense: tuple[bool, ...]
) -> None:
    layout_q = "BNSD" if layout.startswith("PA") else layout
    starts = [0, 5, 8] if layout == "TND" else None
    made = call(
        layout_q=layout_q, layout_kv=layout, block_size=16, nc_kv_dims=nc_kv_dims, k_range=[1, 2],
        cu_seqlens_q=starts,
    )  # fmt: skip
    for arguments in (make_arguments(made, CPU), meta_arguments(made)):
        for tensor in (arguments["k"], arguments["v"]):
            strides, shape = tensor.stride(), tensor.shape
            assert strides[-1] == 1
            got = [strides[i] == strides[i + 1] * shape[i + 1] for i in range(len(dense))]
            assert tuple(got) == dense
    k = make_arguments(made, CPU)["k"]
    assert not k.isnan().any()
    whole = torch.as_strided(k, (k.untyped_storage().nbytes() // 2,), (1,), 0)
    assert int((~whole.isnan()).sum()) == k.numel()


def test_values_are_seeded_and_in_range() -> None:
    made = call(q_range=[-2, 3], k_range=[4, 5])
    first, again = make_arguments(made, CPU), make_arguments(made, CPU)
    other = make_arguments(made, CPU, seed=1)
    assert torch.equal(first["q"], again["q"])
    assert not torch.equal(first["q"], other["q"])
    assert -2 <= first["q"].min() < -1.9
    assert 2.9 < first["q"].max() <= 3
    assert 4 <= first["k"].min() <= first["k"].max() <= 5
    assert first["v"].double().std() == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ({"layout_q": "TND"}, "cu_seqlens_q"),
        ({"layout_q": "TND", "cu_seqlens_q": [0]}, "cu_seqlens_q"),
        ({"B": None}, "`B`"),
        ({"S1": None}, "`S1`"),
        ({"layout_q": "BSH"}, "layout_q"),
        ({"layout_kv": "PA_BBND"}, "block_size"),
        ({"layout_kv": "PA_BBND", "block_size": 4, "block_table_shape": [2, 1]}, "at least [2, 2]"),
        ({"nc_kv_dims": 3}, "nc_kv_dims"),
        ({"nc_kv_dims": [0, 1, 2, 3]}, "nc_kv_dims"),
    ],
)
def test_incomplete_cases_are_refused(fields: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        call(**fields)
    assert says in str(caught.value)


def row(**cells: Any) -> RuleCase:
    shapes = {"q_shape": "2 8 4 64", "k_shape": "2 32 2 64", "v_shape": "2 32 2 64"}
    layouts = dict.fromkeys(("layout_q", "layout_kv", "layout_out"), "BSND")
    case = parse_case({"expectResult": "SUCCESS"} | shapes | layouts | cells)
    assert isinstance(case, RuleCase)
    return case


def test_rows_are_calls() -> None:
    made = describe_rule(
        row(q_dtype="BF16", softmax_scale="-0.5", mask_mode="3", return_softmax_lse="1.0",
            attn_mask_shape="2048 2048", metadata_shape="1", attn_out_shape="2 8 4 64")
    )  # fmt: skip
    assert made.q.dtype == torch.bfloat16
    assert made.k.dtype == torch.float16
    assert made.options["softmax_scale"] == -0.5
    assert made.options["mask_mode"] == made.options["return_softmax_lse"] + 2 == 3
    assert made.small["attn_mask"].dtype == torch.int8
    # one word stands for a plan, whatever it is
    assert made.small["metadata"].shape == (16,)
    assert made.out_shape == (2, 8, 4, 64)


def test_lengths_of_valid_rows_are_whole_axes() -> None:
    made = describe_rule(row(seqused_q_shape="2", seqused_kv_shape="2"))
    found = with_lengths(made, 0).lengths()
    assert found["seqused_q"].tolist() == [8, 8]
    assert found["seqused_kv"].tolist() == [32, 32]


def test_lengths_of_packed_rows_are_equal_parts() -> None:
    tnd = dict.fromkeys(("layout_q", "layout_kv", "layout_out"), "TND")
    made = describe_rule(
        row(**tnd, q_shape="9 4 64", k_shape="32 2 64", v_shape="32 2 64",
            cu_seqlens_q_shape="4", cu_seqlens_kv_shape="4")
    )  # fmt: skip
    found = with_lengths(made, 0).lengths()
    assert found["cu_seqlens_q"].tolist() == [0, 3, 6, 9]
    assert np.diff(found["cu_seqlens_kv"]).max() <= 11


def test_lengths_of_paged_rows_fill_the_pages() -> None:
    made = describe_rule(
        row(layout_kv="PA_BBND", k_shape="6 16 2 64", v_shape="6 16 2 64",
            block_table_shape="2 3", seqused_kv_shape="2")
    )  # fmt: skip
    made = with_lengths(made, 16)
    assert made.lengths()["seqused_kv"].tolist() == [48, 48]
    assert make_arguments(made, CPU)["block_table"].tolist() == [[0, 1, 2], [3, 4, 5]]


@pytest.mark.parametrize(
    ("cells", "says"),
    [
        ({"q_shape": "2 x"}, "`q_shape`"),
        ({"k_shape": None}, "`k_shape`"),
        ({"q_dtype": "COMPLEX"}, "`q_dtype`"),
        ({"mask_mode": "0.5"}, "whole number"),
    ],
)
def test_unreadable_rows_are_refused(cells: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        describe_rule(row(**cells))
    assert says in str(caught.value)


@pytest.mark.parametrize("case", ATTENTION, ids=lambda case: case.id)
def test_public_cases_are_valid_calls(case: AttentionCase) -> None:
    made = describe(case)
    problem = validate_flash_attn(**meta_arguments(made))
    assert problem.out_shape == made.out_shape
