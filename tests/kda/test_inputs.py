"""What callers hand over: layouts, views, lengths as lists and tensors, chunk indices."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fa_triton import chunk_kda_fwd, kda_gate_cumsum
from fa_triton.delta_rule.tables import chunk_tables
from tests.kda.problems import LAYOUTS, OUTPUTS, KdaProblem, from_layout, in_layout

# many forms of many kernels: quick one by one, not together
pytestmark = pytest.mark.slow

SMALL = KdaProblem(head_dims=(64, 32), heads=(1, 2), lengths=(70, 70))
PACKED = SMALL.but(lengths=(3, 0, 64, 65, 1), packed=True, layout="TND")
INPUTS = ("q", "k", "v", "g", "beta")


def everything(arguments: dict[str, Any]) -> dict[str, torch.Tensor]:
    results = chunk_kda_fwd(**arguments, outputs=OUTPUTS)
    return {name: getattr(results, name) for name in OUTPUTS}


def assert_same(got: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name in OUTPUTS:
        assert torch.equal(got[name], expected[name]), name


def without_batch(results: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {
        name: result if name == "final_state" else result[0] for name, result in results.items()
    }


def test_layouts_of_a_packed_batch_agree_bit_for_bit() -> None:
    results = {layout: everything(PACKED.but(layout=layout).arguments()) for layout in LAYOUTS}
    assert_same(results["NTD"], results["TND"])
    assert_same(results["BNSD"], results["BSND"])
    assert_same(without_batch(results["BSND"]), results["TND"])


def test_layouts_of_a_dense_batch_agree_bit_for_bit() -> None:
    assert_same(
        everything(SMALL.but(layout="BNSD").arguments()),
        everything(SMALL.but(layout="BSND").arguments()),
    )


@pytest.mark.parametrize("layout", ["TND", "NTD"])
def test_a_packed_sequence_without_lengths_is_one_sequence(layout: str) -> None:
    one = SMALL.but(lengths=(70,), layout=layout)
    assert_same(everything(one.arguments()), everything(one.but(packed=True).arguments()))


@pytest.mark.parametrize("form", ["int64", "int32", "list", "tuple"])
def test_forms_of_lengths(form: str) -> None:
    arguments = PACKED.arguments()
    bounds = PACKED.cu_seqlens
    assert bounds is not None
    forms: dict[str, Any] = {
        "int64": torch.tensor(bounds),
        "int32": torch.tensor(bounds, dtype=torch.int32),
        "list": bounds,
        "tuple": tuple(bounds),
    }
    assert_same(everything(arguments | {"cu_seqlens": forms[form]}), everything(arguments))


def test_lengths_that_change_in_place() -> None:
    """Tables are kept from batch to batch; the values of a tensor count, not the tensor."""
    arguments = PACKED.but(lengths=(70, 63)).arguments()
    first = everything(arguments)
    arguments["cu_seqlens"][1] = 10
    second = everything(arguments)
    fresh = everything(arguments | {"cu_seqlens": [0, 10, 133]})
    assert_same(second, fresh)
    assert not torch.equal(first["attn_out"], second["attn_out"])


class _Elsewhere(torch.Tensor):
    """A tensor that says that it lies on an accelerator."""

    @property
    def device(self) -> torch.device:  # type: ignore[override]
        return torch.device("cuda", 0)


def test_lengths_kept_with_a_tensor_are_not_those_of_its_copies() -> None:
    """Copies take attributes along, and count their writes anew."""

    def lengths_of(starts: torch.Tensor) -> list[int]:
        tables = chunk_tables(
            batch_size=1,
            num_tokens=133,
            chunk_size=64,
            device=torch.device("cpu"),
            cu_seqlens=starts,
            chunk_indices=None,
        )
        return sorted(tables.sequences[:, 2].tolist())

    starts = torch.zeros(3, dtype=torch.int32).as_subclass(_Elsewhere)
    starts += torch.tensor([0, 70, 133])
    assert lengths_of(starts) == [63, 70]
    copy = torch.tensor([0, 70, 133], dtype=torch.int32).as_subclass(_Elsewhere)
    vars(copy).update(vars(starts))
    copy[1] = 10
    assert copy._version == starts._version
    assert lengths_of(copy) == [10, 123]
    assert lengths_of(starts) == [63, 70]


@pytest.mark.parametrize("form", ["flat list", "pairs", "flat tensor", "tensor of pairs"])
def test_forms_of_chunk_indices(form: str) -> None:
    arguments = PACKED.arguments()
    pairs = [(0, 0), (2, 0), (3, 0), (3, 1), (4, 0)]
    flat = [index for pair in pairs for index in pair]
    forms: dict[str, Any] = {
        "flat list": flat,
        "pairs": pairs,
        "flat tensor": torch.tensor(flat),
        "tensor of pairs": torch.tensor(pairs),
    }
    assert_same(everything(arguments | {"chunk_indices": forms[form]}), everything(arguments))


@pytest.mark.parametrize(
    "wrong",
    [
        [0, 0, 2, 0, 3, 0, 3, 1],
        [0, 0, 2, 0, 3, 0, 3, 1, 4, 0, 4, 1],
        [0, 0, 1, 0, 2, 0, 3, 0, 3, 1, 4, 0],
        [0, 0, 2, 0, 3, 1, 3, 0, 4, 0],
        [],
    ],
    ids=["too few", "too many", "of an empty sequence", "other order", "none"],
)
def test_wrong_chunk_indices_are_refused(wrong: list[int]) -> None:
    arguments = PACKED.arguments()
    for form in (wrong, torch.tensor(wrong, dtype=torch.int64)):
        with pytest.raises(ValueError, match=r"`chunk_indices` must .*got"):
            chunk_kda_fwd(**arguments, chunk_indices=form)


@pytest.mark.parametrize(
    "wrong",
    [
        [1, 3, 133],
        [0, 3, 132],
        [0, 3, 134],
        [0, 5, 3, 133],
        [0, -1, 133],
    ],
)
def test_wrong_lengths_are_refused(wrong: list[int]) -> None:
    arguments = PACKED.but(has_initial_state=False).arguments()
    del arguments["cu_seqlens"]
    for form in (wrong, torch.tensor(wrong)):
        with pytest.raises(ValueError, match=r"`cu_seqlens.* must .*got"):
            chunk_kda_fwd(**arguments, cu_seqlens=form)


def test_reference_mode_checks_lengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FA_TRITON_CPU", "reference")
    arguments = PACKED.but(has_initial_state=False).arguments()
    with pytest.raises(ValueError, match=r"`cu_seqlens\[-1\]` must be .* 133, got 130"):
        chunk_kda_fwd(**arguments | {"cu_seqlens": [0, 130]})
    with pytest.raises(ValueError, match="`chunk_indices` must hold 5 pairs"):
        chunk_kda_fwd(**arguments, chunk_indices=[0, 0])
    with pytest.raises(ValueError, match=r"`cu_seqlens\[0\]` must be 0, got 1"):
        kda_gate_cumsum(torch.zeros(1, 2, 9, 16), 64, cu_seqlens=[1, 9])


@pytest.mark.parametrize("layout", LAYOUTS)
def test_views_are_read_through_their_strides(layout: str) -> None:
    """NaN beside each row, before each token and between heads: a view must not reach it."""
    arguments = SMALL.but(layout=layout, packed=True).arguments()
    expected = everything(arguments)
    viewed = dict(arguments)
    for name in INPUTS:
        x = arguments[name]
        room = torch.full([2 * size + 1 for size in x.shape], torch.nan, dtype=x.dtype)
        inner = (slice(1, None, 2),) * (x.dim() - 1)
        view = room[(*inner, slice(3, 3 + x.shape[-1]))]
        if name == "beta":
            # no axis of beta need be dense
            view = room[(slice(1, None, 2),) * x.dim()]
        view.copy_(x)
        viewed[name] = view
    assert_same(everything(viewed), expected)


def test_slices_of_one_projection() -> None:
    """q, k and v as a model makes them: columns of one matrix."""
    problem = SMALL.but(heads=(2, 2), head_dims=(64, 64), lengths=(70,))
    arguments = problem.arguments()
    joint = torch.cat([arguments[name].flatten(2) for name in "qkv"], -1)
    parts = joint.view(1, 70, 6, 64).split(2, dim=2)
    sliced = arguments | dict(zip("qkv", parts, strict=True))
    assert not sliced["k"].is_contiguous()
    assert_same(everything(sliced), everything(arguments))


def test_a_batch_that_shares_its_inputs() -> None:
    one = SMALL.but(lengths=(70,), has_initial_state=False).arguments()
    shared = one | {name: one[name].expand(3, *one[name].shape[1:]) for name in INPUTS}
    got, expected = everything(shared), everything(one)
    for name in OUTPUTS:
        for entry in range(3):
            assert torch.equal(got[name][entry : entry + 1], expected[name]), name


def test_heads_that_share_a_gate_and_a_step_size() -> None:
    arguments = SMALL.arguments()
    for name in ("g", "beta"):
        arguments[name] = arguments[name][:, :, :1].expand_as(arguments[name])
    copied = arguments | {name: arguments[name].contiguous() for name in ("g", "beta")}
    assert_same(everything(arguments), everything(copied))


def test_strided_initial_states_are_not_needed_but_views_of_dense_ones_are_fine() -> None:
    arguments = SMALL.arguments()
    room = torch.full((4, *arguments["initial_state"].shape[1:]), torch.nan)
    room[1:3] = arguments["initial_state"]
    viewed = arguments | {"initial_state": room[1:3]}
    assert_same(everything(viewed), everything(arguments))


def test_a_shape_of_its_own_for_the_tables_of_heads() -> None:
    arguments = SMALL.arguments()
    shaped = arguments | {
        "A_log": arguments["A_log"].view(1, 1, 2, 1),
        "dt_bias": arguments["dt_bias"].view(2, 64),
    }
    assert_same(everything(shaped), everything(arguments))


def test_heads_share_q_and_k() -> None:
    """A group of value heads reads the same q and k as if they were repeated."""
    arguments = SMALL.but(heads=(2, 6)).arguments()
    repeated = arguments | {
        name: in_layout(from_layout(arguments[name], "BSND").repeat_interleave(3, 2), "BSND")
        for name in ("q", "k")
    }
    assert_same(everything(arguments), everything(repeated))
