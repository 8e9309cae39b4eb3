"""One call site: grids, arguments, specialisation, errors, the log."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import numpy as np
import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native import kernel as native
from fa_triton.native.arguments import Arguments
from fa_triton.native.front_end import to_linalg


@triton.jit
def copy(X, Y, n, stride, BLOCK: tl.constexpr = 64):
    p = tl.program_id(0)
    o = tl.arange(0, BLOCK)
    x = tl.load(X + p.to(tl.int64) * stride + o, mask=o < n, other=0)
    tl.store(Y + p * BLOCK + o, x)


def vectors(count: int = 128) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(count), torch.zeros(count)


@pytest.mark.parametrize(
    "grid",
    [2, (2,), [2], (2, 1, 1), (np.int64(2),), lambda meta: (triton.cdiv(128, meta["BLOCK"]),)],
)
def test_grids(grid: object) -> None:
    x, y = vectors()
    runner(copy)[grid](x, y, 64, 64, BLOCK=64)
    assert torch.equal(x, y)


@pytest.mark.parametrize("grid", [0, (0,), (4, 0), lambda meta: (0,)])
def test_empty_grid_runs_nothing(grid: object) -> None:
    x, y = vectors()
    runner(copy)[grid](x, y, 64, 64)
    assert (y == 0).all()
    assert native.statistics().compiled == 0


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ((1, 1, 1, 1), ValueError, "`grid` must have 1 to 3 axes"),
        ((-1,), ValueError, "`grid` must not be negative"),
        ((1.5,), TypeError, "`grid` must hold integers"),
        ((2**20, 2**20), ValueError, "`grid` must have fewer than 2\\*\\*31 programs"),
    ],
)
def test_bad_grids(grid: object, error: type[Exception], message: str) -> None:
    x, y = vectors()
    with pytest.raises(error, match=message):
        runner(copy)[grid](x, y, 64, 64)


def test_arguments_by_name_and_defaults() -> None:
    x, y = vectors()
    runner(copy)[(2,)](Y=y, X=x, stride=64, n=64)
    assert torch.equal(x, y)


def test_launch_options_are_dropped() -> None:
    x, y = vectors()
    runner(copy)[(2,)](x, y, 64, 64, num_warps=8, num_stages=2, multibuffer=True)
    assert torch.equal(x, y)


@pytest.mark.parametrize(
    "number", [np.int64(64), np.int32(64), torch.tensor(64).numpy()[()], np.uint8(64)]
)
def test_foreign_integers(number: object) -> None:
    x, y = vectors()
    runner(copy)[(2,)](x, y, number, number)
    assert torch.equal(x, y)


@triton.jit
def affine(X, Y, scale, flag, BIAS, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o) * scale
    if flag:
        x = -x
    if BIAS is not None:
        x += tl.load(BIAS + o)
    tl.store(Y + o, x)


@pytest.mark.parametrize("scale", [2.5, np.float32(2.5), np.float64(2.5)])
@pytest.mark.parametrize("flag", [False, True])
def test_floats_bools_and_none(scale: float, flag: bool) -> None:
    x, y = vectors(32)
    bias = torch.randn(32)
    runner(affine)[1](x, y, scale, flag, None, BLOCK=32)
    assert torch.equal(y, -x * 2.5 if flag else x * 2.5)
    runner(affine)[1](x, y, scale, flag, bias, BLOCK=32)
    torch.testing.assert_close(y, (-x if flag else x) * 2.5 + bias)


def test_floats_are_single_precision() -> None:
    arguments = Arguments(affine)
    x, y = vectors(32)
    values = arguments.bind((x, y, 0.1, True, None), {"BLOCK": 32})
    signature = arguments.specialize(values).signature
    assert signature["scale"] == "fp32"
    assert signature["flag"] == "i1"
    assert signature["BIAS"] == "constexpr"


def specialization(
    *args: object, **meta: object
) -> tuple[dict[str, str], dict[str, object], tuple]:
    arguments = Arguments(copy)
    result = arguments.specialize(arguments.bind(args, meta))
    return dict(result.signature), dict(result.constants), result.divisible


def test_specialisation_is_that_of_triton() -> None:
    x, y = vectors()
    signature, constants, divisible = specialization(x, y[1:], 48, 1, BLOCK=32)
    assert signature == {
        "X": "*fp32",
        "Y": "*fp32",
        "n": "i32",
        "stride": "i32",
        "BLOCK": "constexpr",
    }
    assert constants == {"stride": 1, "BLOCK": 32}
    assert divisible == (0, 2)
    assert specialization(x, y, 2**31, -(2**31))[0]["n"] == "i64"
    assert specialization(x, y, 2**31, -(2**31))[0]["stride"] == "i32"
    assert specialization(x, y, 2**63, 0)[0]["n"] == "u64"


def test_specialisation_reaches_the_ir() -> None:
    x, y = vectors()
    arguments = Arguments(copy)
    values = arguments.bind((x, y, 48, 1), {"BLOCK": 32})
    text = to_linalg(copy, arguments.specialize(values))
    header = next(line for line in text.splitlines() if "func.func @copy" in line)
    parameters = re.findall(r"%arg\d+: [^%]*", header)
    own = parameters[2:-6]
    assert len(own) == 3
    assert all("tt.divisibility = 16" in parameter for parameter in own)


@triton.jit(do_not_specialize=["n"])
def count(Y, n):
    tl.store(Y, n)


def test_do_not_specialize_keeps_one_variant() -> None:
    y = torch.zeros(1, dtype=torch.int32)
    for n in (1, 16, 17, -5):
        runner(count)[1](y, n)
        assert y.item() == n
    assert runner(count)._native is not None
    assert runner(count)._native.num_variants == 1


@triton.jit
def store_number(Y, n):
    tl.store(Y, n)


def test_large_integers_recompile() -> None:
    y = torch.zeros(1, dtype=torch.int64)
    for n in (5, 7, 2**40 + 1, -(2**35), 2**63 - 1, -(2**63), 1, 16):
        runner(store_number)[1](y, n)
        assert y.item() == n
    # odd i32; odd and even i64 by sign of 16-divisibility; 1; 16
    assert runner(store_number)._native is not None
    assert runner(store_number)._native.num_variants == 5


def test_offsets_beyond_32_bits() -> None:
    x = torch.empty(2**31 + 4096, dtype=torch.int8)
    x[2**31 : 2**31 + 64] = torch.arange(64, dtype=torch.int8)
    x[:64] = 1
    y = torch.zeros(128, dtype=torch.int8)
    runner(copy)[(2,)](x, y, 64, 2**31)
    assert torch.equal(y[64:], x[2**31 : 2**31 + 64])


def test_constexpr_types_are_told_apart() -> None:
    x, y = vectors(64)
    runner(copy)[1](x, y, 64, 64, BLOCK=64)
    runner(copy)[1](x, y, 64, 64, BLOCK=tl.constexpr(64))
    assert runner(copy)._native is not None
    assert runner(copy)._native.num_variants == 1


def test_misaligned_pointers() -> None:
    x, y = torch.randn(130), torch.zeros(128)
    runner(copy)[(2,)](x, y, 64, 64)
    assert torch.equal(y, x[:128])
    runner(copy)[(2,)](x[1:], y, 64, 64)
    assert torch.equal(y, x[1:129])


@pytest.mark.parametrize(
    ("args", "meta", "error", "message"),
    [
        ((0,), {}, TypeError, "kernel `copy` must get `Y`, `n`, `stride`, got none"),
        ((0, 0, 1, 1, 64, 5), {}, TypeError, "kernel `copy` must get at most 5 arguments, got 6"),
        ((0, 0, 1, 1), {"FOO": 1}, TypeError, "launch options, got `FOO`"),
        ((0, 0, 1), {"stride": 1, "n": 1}, TypeError, "must get `n` once, got two"),
        (("x", 0, 1, 1), {}, TypeError, "`X` must be a tensor, a number or None, got str"),
        ((0, 0, 2**65, 1), {}, ValueError, "`n` must fit 64 bits"),
        ((0, 0, 1, 1), {"BLOCK": [1]}, TypeError, "`BLOCK` must be a hashable"),
        ((0, 0, 1, 1), {"BLOCK": max}, TypeError, "`BLOCK` must be a compile-time value"),
    ],
)
def test_bad_arguments(
    args: tuple[object, ...], meta: dict[str, object], error: type[Exception], message: str
) -> None:
    x = torch.zeros(64)
    filled = [x if value == 0 and position < 2 else value for position, value in enumerate(args)]
    with pytest.raises(error, match=re.escape(message)):
        runner(copy)[1](*filled, **meta)


def test_dtype_without_pointer_type() -> None:
    x = torch.zeros(64, dtype=torch.complex64)
    with pytest.raises(
        TypeError, match=r"`X` must have a dtype a kernel can point to, got torch\.comp"
    ):
        runner(copy)[1](x, torch.zeros(64), 64, 1)


def test_tensor_on_another_device() -> None:
    with pytest.raises(RuntimeError, match="`Y` must be on cpu, got meta"):
        runner(copy)[1](torch.zeros(64), torch.zeros(64, device="meta"), 64, 1)


def test_tensor_without_memory() -> None:
    x, y = vectors(64)
    x.untyped_storage().resize_(0)
    with pytest.raises(NotImplementedError, match=r"`X` must have memory, got .*\(64,\)"):
        runner(copy)[1](x, y, 64, 1)
    runner(copy)[1](torch.zeros(0), y, 0, 1)
    assert not y.any()


def test_the_variant_key_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    x, y = vectors()
    with caplog.at_level(logging.DEBUG, logger="fa_triton.launch"):
        runner(copy)[(2,)](x, y, 64, 64, variant="copy-64")
    assert "copy-64" in caplog.text


def test_runner_is_made_once() -> None:
    assert runner(copy) is runner(copy)


@triton.jit
def sorts(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(Y + o, tl.sort(tl.load(X + o)))


@triton.jit
def prints(X, Y, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    x = tl.load(X + o)
    tl.device_print("x", x)
    tl.store(Y + o, x)


@pytest.mark.parametrize(
    ("kernel", "message"),
    [(sorts, "kernel `sorts` .*`tl.sort` has no"), (prints, "kernel `prints` .*`tl.device_print`")],
)
def test_unsupported_calls_name_themselves(kernel: object, message: str) -> None:
    x, y = vectors(32)
    with pytest.raises(NotImplementedError, match=message):
        runner(kernel)[1](x, y, BLOCK=32)


@triton.jit
def endless(X, n):
    while n > 0:
        tl.store(X, 1.0)


def test_a_lowering_failure_says_where_to_look() -> None:
    with pytest.raises(RuntimeError, match=r"kernel `endless` .*test_launch\.py") as caught:
        runner(endless)[1](torch.zeros(1), 0)
    message = str(caught.value)
    assert "triton-adapter-opt" in message
    saved = re.search(r"IR saved in (\S+)\]", message)
    assert saved is not None
    path = Path(saved[1])
    assert "tt.func" in path.read_text()
    path.unlink()


def test_listeners_hear_of_compilations() -> None:
    events: list[native.CompileEvent] = []
    remove = native.add_listener(events.append)
    x, y = vectors()
    runner(copy)[(2,)](x, y, 64, 64)
    runner(copy)[(2,)](x, y, 64, 64)
    remove()
    runner(copy)[(2,)](x, y, 63, 64)
    assert [event.kernel for event in events] == ["copy", "copy"]
    assert events[0].seconds is None
    assert events[1].seconds is not None
    statistics = native.statistics()
    assert statistics.compiled + statistics.cache_hits == 2
