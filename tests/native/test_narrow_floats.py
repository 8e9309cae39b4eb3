"""16-bit floats are copied bit by bit and rounded as torch does, in loops that vectorise."""

from __future__ import annotations

import pytest
import torch
import triton
import triton.language as tl

from fa_triton.launch import runner
from fa_triton.native.narrow_floats import vectorisable

SIZE = 67


@triton.jit
def round_rows(x, out, n, BLOCK: tl.constexpr):
    o = tl.arange(0, BLOCK)
    tl.store(out + o, tl.load(x + o, mask=o < n, other=0.0).to(out.dtype.element_ty), mask=o < n)


def bits(x: torch.Tensor) -> torch.Tensor:
    return x.view(torch.int16)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_copy_keeps_every_bit(dtype: torch.dtype) -> None:
    x = torch.arange(SIZE, dtype=torch.int16).mul(487).view(dtype)
    out = torch.zeros_like(x)
    runner(round_rows)[(1,)](x=x, out=out, n=SIZE, BLOCK=128)
    assert torch.equal(bits(out), bits(x))


def test_rounding_to_bf16_is_that_of_torch() -> None:
    words = [0, 0x8000, 0x7FFF, 0x8001, 0x17FFF, 0x18000, 1, 0x7F7FFFFF, 0x7F800000, 0x3F808000]
    words += [0x3F818000, 0x3F80FFFF, 0x7F800001, 0x7FFFFFFF, 0x7FC00000, 0x7F80FFFF]
    x = torch.tensor(words, dtype=torch.int32).view(torch.float32)
    x = torch.cat([x, -x, torch.randn(SIZE - 2 * len(words))])
    out = torch.zeros(SIZE, dtype=torch.bfloat16)
    runner(round_rows)[(1,)](x=x, out=out, n=SIZE, BLOCK=128)
    expected = x.bfloat16()
    is_nan = x.isnan()
    assert torch.equal(bits(out)[~is_nan], bits(expected)[~is_nan])
    assert out[is_nan].isnan().all()


def test_a_value_with_another_use_stays_a_float() -> None:
    copy = (
        "define void @f(ptr %0) {\n"
        "  %1 = load bfloat, ptr %0, align 2\n"
        "  store bfloat %1, ptr %0, align 2\n"
        "{}  ret void\n}}\n"
    )
    assert "i16 %1" in vectorisable(copy.replace("{}", "").replace("}}", "}"))
    used = copy.replace("{}", "  %2 = fneg bfloat %1\n").replace("}}", "}")
    assert vectorisable(used) == used
