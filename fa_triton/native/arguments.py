"""A call's arguments -> launch key, specialisation, and packed argument slots."""

from __future__ import annotations

import contextlib
import operator
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from triton.language import constexpr
from triton.runtime.jit import JITFunction

from fa_triton.native.front_end import Specialization

POINTER_TYPES = {
    torch.float16: "fp16",
    torch.bfloat16: "bf16",
    torch.float32: "fp32",
    torch.float64: "fp64",
    torch.bool: "i1",
    torch.int8: "i8",
    torch.int16: "i16",
    torch.int32: "i32",
    torch.int64: "i64",
    torch.uint8: "u8",
    torch.uint16: "u16",
    torch.uint32: "u32",
    torch.uint64: "u64",
}

_ALIGNMENT = 16
_INT32 = range(-(2**31), 2**31)
_INT64 = range(-(2**63), 2**63)
_UINT64 = range(2**64)

_SLOTS = {"f32": "f4x", "f64": "d", "i1": "q"}


def plain(value: Any) -> Any:
    """A Python scalar for a numpy or torch scalar; other values unchanged.

    A 0-dimensional tensor is a pointer, as for Triton on every device.
    """
    if isinstance(value, int | float | torch.Tensor) or value is None:
        return value
    if hasattr(value, "__index__"):
        return operator.index(value)
    if hasattr(value, "dtype") and hasattr(value, "__float__"):
        return bool(value) if str(value.dtype) == "bool" else float(value)
    return value


@dataclass(frozen=True)
class _Layout:
    """Where a call's tensors and integers are (with whether they are not to be specialised).

    Attributes:
        tensors: Pointers.
        integers: Run-time integers.
        verbatim: Arguments whose value itself decides about the variant.
    """

    tensors: tuple[tuple[int, bool], ...]
    integers: tuple[tuple[int, bool], ...]
    verbatim: tuple[int, ...]


class Arguments:
    """Binds and specialises the arguments of one kernel.

    Args:
        kernel: The ``@triton.jit`` function.
    """

    def __init__(self, kernel: JITFunction) -> None:
        self.kernel = kernel
        self.names: tuple[str, ...] = tuple(kernel.arg_names)
        self._known = frozenset(self.names)
        self._parameters = tuple(kernel.params)
        self._constant = tuple(p.is_constexpr for p in self._parameters)
        self._loose = frozenset(
            number for number, p in enumerate(self._parameters) if p.do_not_specialize
        )
        self._layouts: dict[tuple[type, ...], _Layout] = {}
        self._defaults = {
            p.name: p.default.value if isinstance(p.default, constexpr) else p.default
            for p in self._parameters
            if p.has_default
        }
        self._by_name = operator.itemgetter(*self.names) if len(self.names) > 1 else None

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Values in parameter order.

        Raises:
            TypeError: An argument is missing, given twice, or too many are given.
        """
        if self._by_name is not None and not args:
            # the usual launch: every argument by name, or left at its default
            with contextlib.suppress(KeyError):
                return list(self._by_name({**self._defaults, **kwargs}))
        names = self.names
        given = len(args)
        if given > len(names):
            raise TypeError(
                f"kernel `{self.kernel.__name__}` must get at most {len(names)} arguments, "
                f"got {given}"
            )
        values = list(args)
        for name in names[given:]:
            if name in kwargs:
                values.append(kwargs[name])
            elif name in self._defaults:
                values.append(self._defaults[name])
            else:
                missing = [n for n in names[given:] if n not in kwargs and n not in self._defaults]
                raise TypeError(
                    f"kernel `{self.kernel.__name__}` must get {_listed(missing)}, got none"
                )
        if not self._known.isdisjoint(kwargs):
            twice = [name for name in names[:given] if name in kwargs]
            if twice:
                raise TypeError(
                    f"kernel `{self.kernel.__name__}` must get {_listed(twice)} once, got two"
                )
        return values

    def launch_key(self, values: list[Any]) -> tuple[tuple[Any, ...], list[Any]]:
        """Key that is equal for calls of one variant, and the numbers to pack.

        This runs at every launch, so arguments are sorted by type once per combination of types
        and only what decides about the variant is looked at.

        Args:
            values: What ``bind`` returned.

        Returns:
            The key; values in parameter order with addresses in place of tensors.

        Raises:
            TypeError: An argument is no tensor, number, or compile-time value.
            RuntimeError: A tensor is not on the CPU.
            NotImplementedError: A tensor has elements but no memory.
        """
        types = tuple(map(type, values))
        layout = self._layouts.get(types)
        if layout is None:
            values = self._unwrap(values)
            types = tuple(map(type, values))
            layout = self._layouts.get(types)
            if layout is None:
                layout = self._layouts[types] = self._layout(types)
        packed = values[:]
        key: list[Any] = [types]
        for position, loose in layout.tensors:
            tensor = values[position]
            if not tensor.is_cpu:
                raise RuntimeError(
                    f"kernel `{self.kernel.__name__}`: `{self.names[position]}` must be on cpu, "
                    f"got {tensor.device}"
                )
            address = packed[position] = tensor.data_ptr()
            if not address and tensor.numel():
                raise NotImplementedError(
                    f"kernel `{self.kernel.__name__}`: `{self.names[position]}` must have memory, "
                    f"got a tensor of shape {tuple(tensor.shape)} whose storage is gone"
                )
            key.append(tensor.dtype)
            key.append(loose or not address & 15)
        for position, loose in layout.integers:
            value = values[position]
            key.append(loose or (2 if value == 1 else not value & 15))
            if not -0x80000000 <= value <= 0x7FFFFFFF:
                key.append(value < 2**63)
        for position in layout.verbatim:
            key.append(values[position])
        return tuple(key), packed

    def pointers(self, values: Sequence[Any]) -> list[tuple[int, str, bool | None]]:
        """Position, name and alignment of every tensor, None where a kernel ignores it."""
        return [
            (
                position,
                self.names[position],
                None if position in self._loose else value.data_ptr() % _ALIGNMENT == 0,
            )
            for position, value in enumerate(values)
            if isinstance(value, torch.Tensor)
        ]

    def _unwrap(self, values: Sequence[Any]) -> list[Any]:
        """Replace numpy and torch scalars and constexpr objects by what they hold."""
        unwrapped = []
        for name, constant, given in zip(self.names, self._constant, values, strict=True):
            value = given.value if isinstance(given, constexpr) else plain(given)
            if not constant and not isinstance(value, int | float | torch.Tensor | None):
                raise TypeError(
                    f"kernel `{self.kernel.__name__}`: `{name}` must be a tensor, a number or "
                    f"None, got {type(given).__name__}"
                )
            if constant and type(value).__hash__ is None:
                raise TypeError(
                    f"kernel `{self.kernel.__name__}`: `{name}` must be a hashable compile-time "
                    f"value, got {type(value).__name__}"
                )
            unwrapped.append(value)
        return unwrapped

    def _layout(self, types: Sequence[type]) -> _Layout:
        tensors, integers, verbatim = [], [], []
        for position, kind in enumerate(types):
            loose = position in self._loose
            if self._constant[position] or kind is bool:
                verbatim.append(position)
            elif issubclass(kind, torch.Tensor):
                tensors.append((position, loose))
            elif issubclass(kind, int):
                integers.append((position, loose))
        return _Layout(tuple(tensors), tuple(integers), tuple(verbatim))

    def specialize(self, values: Sequence[Any]) -> Specialization:
        """Types, compile-time values and alignment of a call, as Triton derives them.

        Args:
            values: What ``bind`` returned.

        Raises:
            TypeError: A tensor's dtype has no pointer type, or a constexpr is a function.
            ValueError: An integer exceeds 64 bits.
        """
        signature: dict[str, str] = {}
        constants: dict[str, Any] = {}
        divisible = []
        for number, (parameter, given) in enumerate(zip(self._parameters, values, strict=True)):
            name = parameter.name
            value = given.value if isinstance(given, constexpr) else plain(given)
            if parameter.is_constexpr or value is None:
                if callable(value):
                    raise TypeError(
                        f"kernel `{self.kernel.__name__}`: `{name}` must be a compile-time "
                        f"value, got the function {value!r}"
                    )
                signature[name] = "constexpr"
                constants[name] = value
                continue
            signature[name] = parameter.annotation_type or self._type_of(parameter, value)
            if parameter.do_not_specialize:
                continue
            if type(value) is int and value == 1:
                constants[name] = 1
            elif _divisible(value) and not parameter.do_not_specialize_on_alignment:
                divisible.append(number)
        return Specialization(signature, constants, tuple(divisible))

    def _type_of(self, parameter: Any, value: Any) -> str:
        if isinstance(value, torch.Tensor):
            element = POINTER_TYPES.get(value.dtype)
            if element is None:
                raise TypeError(
                    f"kernel `{self.kernel.__name__}`: `{parameter.name}` must have a dtype a "
                    f"kernel can point to, got {value.dtype}"
                )
            return ("*k" if parameter.is_const else "*") + element
        if isinstance(value, bool):
            return "i1"
        if isinstance(value, float):
            return "fp32"
        if value in _INT32:
            return "i32"
        if value in _INT64:
            return "i64"
        if value in _UINT64:
            return "u64"
        raise ValueError(
            f"kernel `{self.kernel.__name__}`: `{parameter.name}` must fit 64 bits, got {value}"
        )

    def packer(
        self, specialization: Specialization, types: Sequence[str]
    ) -> Callable[[list[Any]], bytes]:
        """Function that packs ``launch_key``'s values into argument slots.

        Args:
            specialization: The variant's specialisation.
            types: MLIR types of its run-time arguments.
        """
        keep = [
            position
            for position, (name, kind) in enumerate(specialization.signature.items())
            if kind != "constexpr" and name not in specialization.constants
        ]
        kinds = list(specialization.signature.values())
        form = "<" + "".join(
            "Q" if kinds[position] == "u64" else _SLOTS.get(mlir_type, "q")
            for position, mlir_type in zip(keep, types, strict=True)
        )
        pack = struct.Struct(form).pack
        if len(keep) < 2:
            return lambda values: pack(*(values[position] for position in keep))
        select = operator.itemgetter(*keep)
        return lambda values: pack(*select(values))


def _divisible(value: Any) -> bool:
    if isinstance(value, torch.Tensor):
        return value.data_ptr() % _ALIGNMENT == 0
    return isinstance(value, int) and value % _ALIGNMENT == 0


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names)
