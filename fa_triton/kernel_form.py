"""One compiled form of a kernel, and the key that names it.

A key says everything a compile depends on, so that what a launch logs can be compiled alone:
``attn_forward-bf16-group1-d128-block_q64-block_kv256-has_right-with_softmax_lse``. A word
``name.dtype`` tells the dtype of a tensor that may have another one than the inputs.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass

DTYPE_NAMES = {"float16": "fp16", "bfloat16": "bf16", "float32": "fp32", "int8": "i8"}
_PRESENT = "with_"


@dataclass(frozen=True)
class KernelForm:
    """One compiled form of a kernel.

    Attributes:
        kernel: Name of the kernel and of its file.
        dtype: Dtype of the inputs: ``bf16``, ``fp16`` or ``fp32``.
        constants: ``constexpr`` values by name; a question that is absent is answered no.
        tensors: Optional tensors that are there.
        dtypes: Dtypes of the tensors that may differ from the inputs.
    """

    kernel: str
    dtype: str
    constants: tuple[tuple[str, int | bool], ...]
    tensors: tuple[str, ...] = ()
    dtypes: tuple[tuple[str, str], ...] = ()

    @functools.cached_property
    def key(self) -> str:
        """Name of the form; :func:`parse_key` reads it back."""
        numbers = [f"{k.lower()}{v}" for k, v in self.constants if not isinstance(v, bool)]
        answers = [k.lower() for k, v in self.constants if v is True]
        dtypes = [f"{name}.{dtype}" for name, dtype in self.dtypes]
        tensors = [_PRESENT + name for name in self.tensors]
        return "-".join([self.kernel, self.dtype, *dtypes, *numbers, *answers, *tensors])


def dtype_name(dtype: object) -> str:
    """Name of a torch dtype as keys and Triton spell it.

    Raises:
        KeyError: No kernel takes tensors of this dtype.
    """
    return DTYPE_NAMES[str(dtype).removeprefix("torch.")]


def parse_key(key: str) -> KernelForm:
    """Read a key that a launch logged.

    Raises:
        ValueError: The text is no key.
    """
    kernel, dtype, *words = key.split("-") if "-" in key else (key, "")
    constants: dict[str, int | bool] = {}
    tensors: list[str] = []
    dtypes: list[tuple[str, str]] = []
    for word in words:
        name, dot, own_dtype = word.partition(".")
        if dot:
            dtypes.append((name, own_dtype))
        elif word.startswith(_PRESENT):
            tensors.append(word.removeprefix(_PRESENT))
        else:
            number = re.fullmatch(r"(\D+?)(\d+)", word)
            constants[(number[1] if number else word).upper()] = int(number[2]) if number else True
    named = {dtype, *(own_dtype for _, own_dtype in dtypes)}
    if not named <= set(DTYPE_NAMES.values()) or not constants:
        raise ValueError(f"`key` must be the key of a variant as a launch logs it, got {key!r}")
    return KernelForm(kernel, dtype, tuple(constants.items()), tuple(tensors), tuple(dtypes))


def parse_key_of(kernels: Sequence[str], key: str) -> KernelForm:
    """Read a key that a launch of one of these kernels logged.

    Raises:
        ValueError: The text is no key, or that of another kernel.
    """
    form = parse_key(key)
    if form.kernel not in kernels:
        raise ValueError(f"`key` must start with {' or '.join(kernels)}, got {key!r}")
    return form
