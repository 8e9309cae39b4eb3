"""A few lines of LLVM IR text at a time: fresh names, loops, vector loads and stores."""

from __future__ import annotations

from collections.abc import Callable, Sequence

LLVM_ELEMENT = {"bf16": "bfloat", "f16": "half", "f32": "float"}
BYTES = {"i8": 1, "bf16": 2, "f16": 2, "f32": 4}
# Bytes of a cache line.
LINE = 64


def splat(vector: str, value: str) -> str:
    """A constant vector, for instance ``splat("<16 x i32>", "16")``."""
    count, element = vector.strip("<>").split(" x ")
    return "<" + ", ".join([f"{element} {value}"] * int(count)) + ">"


class Builder:
    """Body of one LLVM function, grown line by line; every value gets a fresh name.

    Args:
        lanes: Floats of a vector: 16 with 512-bit vectors, 8 with 256-bit ones.
        has_bf16: The CPU rounds to bf16 in one instruction.

    Attributes:
        f32: Type of a vector of floats.
        i32: Type of a vector of words.
        i1: Type of a vector of truth values.
        size: Bytes of a vector.
    """

    def __init__(self, lanes: int, has_bf16: bool = False) -> None:
        self.lanes = lanes
        self.f32 = f"<{lanes} x float>"
        self.i32 = f"<{lanes} x i32>"
        self.i1 = f"<{lanes} x i1>"
        self.size = 4 * lanes
        self.has_bf16 = has_bf16
        self.lines: list[str] = ["entry:"]
        self.declarations: set[str] = set()
        self._block = "entry"
        self._count = 0

    def name(self) -> str:
        """A name that is not used yet, without sigil."""
        self._count += 1
        return f"v{self._count}"

    def line(self, text: str) -> None:
        """Append an instruction without result."""
        self.lines.append(f"  {text}")

    def value(self, text: str) -> str:
        """Append an instruction and return its result."""
        name = f"%{self.name()}"
        self.line(f"{name} = {text}")
        return name

    def call(self, result: str, function: str, parameters: Sequence[str], values: str) -> str:
        """Call an intrinsic and declare it; ``result`` "void" returns an empty string."""
        self.declarations.add(f"declare {result} @{function}({', '.join(parameters)})")
        text = f"call {result} @{function}({values})"
        if result == "void":
            self.line(text)
            return ""
        return self.value(text)

    def label(self, name: str) -> None:
        """Start a block."""
        self.lines.append(f"{name}:")
        self._block = name

    def loop(
        self,
        stop: int,
        step: int,
        body: Callable[[str, list[str]], list[str]],
        carried: Sequence[tuple[str, str]] = (),
    ) -> list[str]:
        """Count from 0 to ``stop``; without a loop where one step does it.

        Args:
            stop: Upper bound, a multiple of ``step``.
            step: Step.
            body: Emits one iteration from the index and the carried values, returns the new ones.
            carried: Type and initial value of each carried value.

        Returns:
            The carried values after the loop.
        """
        if stop <= step:
            return body("0", [value for _, value in carried])
        head = self.name()
        before = self._block
        self.line(f"br label %{head}")
        self.label(head)
        index, following = f"%{self.name()}", f"%{self.name()}"
        names = [f"%{self.name()}" for _ in carried]
        place = len(self.lines)
        results = body(index, names)
        self.line(f"{following} = add nuw nsw i64 {index}, {step}")
        more = self.value(f"icmp ult i64 {following}, {stop}")
        after = self.name()
        self.line(f"br i1 {more}, label %{head}, label %{after}")
        phis = [f"  {index} = phi i64 [ 0, %{before} ], [ {following}, %{self._block} ]"]
        for name, (kind, start), end in zip(names, carried, results, strict=True):
            phis.append(f"  {name} = phi {kind} [ {start}, %{before} ], [ {end}, %{self._block} ]")
        self.lines[place:place] = phis
        self.label(after)
        return results

    def add(self, left: str, right: str) -> str:
        """Sum of two i64 values, folded where one is the constant 0."""
        if left == "0":
            return right
        return left if right == "0" else self.value(f"add i64 {left}, {right}")

    def times(self, left: str, right: int | str) -> str:
        """Product of i64 values, folded where it is constant."""
        if left == "0" or right in (0, "0"):
            return "0"
        if left.isdigit() and str(right).isdigit():
            return str(int(left) * int(right))
        return left if right in (1, "1") else self.value(f"mul i64 {left}, {right}")

    def at(self, base: str, offset: str, element: str = "i8") -> str:
        """Address of ``base[offset]``."""
        if offset == "0":
            return base
        return self.value(f"getelementptr {element}, ptr {base}, i64 {offset}")

    def load(self, kind: str, address: str, align: int = 4) -> str:
        """Load a value."""
        return self.value(f"load {kind}, ptr {address}, align {align}")

    def store(self, kind: str, value: str, address: str, align: int = 4) -> None:
        """Store a value."""
        self.line(f"store {kind} {value}, ptr {address}, align {align}")

    def scratch(self, size: int) -> str:
        """Bytes on the stack, aligned to a cache line; call it before any loop."""
        return self.value(f"alloca [{size} x i8], align 64")

    def shuffle(self, kind: str, left: str, right: str, lanes: Sequence[int]) -> str:
        """Choose lanes of two vectors."""
        mask = ", ".join(f"i32 {lane}" for lane in lanes)
        return self.value(
            f"shufflevector {kind} {left}, {kind} {right}, <{len(lanes)} x i32> <{mask}>"
        )

    def broadcast(self, value: str) -> str:
        """A float in all lanes."""
        one = self.value(f"insertelement {self.f32} poison, float {value}, i64 0")
        return self.shuffle(self.f32, one, one, [0] * self.lanes)

    def horizontal_sum(self, value: str) -> str:
        """Sum of a vector."""
        total = f"llvm.vector.reduce.fadd.v{self.lanes}f32"
        self.declarations.add(f"declare float @{total}(float, {self.f32})")
        return self.value(f"call reassoc float @{total}(float 0.0, {self.f32} {value})")

    def narrow(self, element: str, value: str, address: str) -> None:
        """Round a vector to nearest and store it."""
        f32, i32, lanes = self.f32, self.i32, self.lanes
        if element == "f32":
            self.store(f32, value, address)
        elif element == "f16" or self.has_bf16:
            kind = f"<{lanes} x {LLVM_ELEMENT[element]}>"
            self.store(kind, self.value(f"fptrunc {f32} {value} to {kind}"), address, 2)
        else:
            bits = self.value(f"bitcast {f32} {value} to {i32}")
            high = self.value(f"lshr {i32} {bits}, {splat(i32, '16')}")
            odd = self.value(f"and {i32} {high}, {splat(i32, '1')}")
            bias = self.value(f"add {i32} {odd}, {splat(i32, str(0x7FFF))}")
            rounded = self.value(f"add {i32} {bits}, {bias}")
            nan = self.value(f"fcmp uno {f32} {value}, {value}")
            # A NaN whose payload lies in the lower half must not become an infinity.
            quiet = self.value(f"or {i32} {bits}, {splat(i32, str(0x400000))}")
            chosen = self.value(f"select <{lanes} x i1> {nan}, {i32} {quiet}, {i32} {rounded}")
            upper = self.value(f"lshr {i32} {chosen}, {splat(i32, '16')}")
            half = self.value(f"trunc {i32} {upper} to <{lanes} x i16>")
            self.store(f"<{lanes} x i16>", half, address, 2)

    def fma(self, a: str, b: str, c: str) -> str:
        """``a * b + c`` on vectors."""
        f32, name = self.f32, f"llvm.fma.v{self.lanes}f32"
        return self.call(f32, name, (f32, f32, f32), f"{f32} {a}, {f32} {b}, {f32} {c}")

    def widen(self, element: str, address: str) -> str:
        """A vector of consecutive elements as floats."""
        f32, i32, lanes = self.f32, self.i32, self.lanes
        if element == "f32":
            return self.load(f32, address)
        if element == "f16":
            half = self.load(f"<{lanes} x half>", address, 2)
            return self.value(f"fpext <{lanes} x half> {half} to {f32}")
        if element == "i8":
            integers = self.load(f"<{lanes} x i8>", address, 1)
            wide = self.value(f"sext <{lanes} x i8> {integers} to {i32}")
            return self.value(f"sitofp {i32} {wide} to {f32}")
        bits = self.load(f"<{lanes} x i16>", address, 2)
        wide = self.value(f"zext <{lanes} x i16> {bits} to {i32}")
        high = self.value(f"shl {i32} {wide}, {splat(i32, '16')}")
        return self.value(f"bitcast {i32} {high} to {f32}")

    def widen_two(self, element: str, address: str, is_split: bool) -> list[str]:
        """Consecutive elements as two vectors of floats.

        Args:
            element: Their type.
            address: The first of them.
            is_split: Those in even places and those in odd ones, instead of two halves; bf16 alone.
        """
        if not is_split:
            second = self.at(address, str(self.lanes * BYTES[element]))
            return [self.widen(element, address), self.widen(element, second)]
        pairs = self.load(self.i32, address, 2)
        even = self.value(f"shl {self.i32} {pairs}, {splat(self.i32, '16')}")
        odd = self.value(f"and {self.i32} {pairs}, {splat(self.i32, '-65536')}")
        return [self.value(f"bitcast {self.i32} {x} to {self.f32}") for x in (even, odd)]

    def prefetch(self, address: str) -> None:
        """Ask for a cache line that will be read.

        With 256-bit vectors it goes to the second-level cache: prefetches into the first one slow
        the loads beside them (Zen 4, 2026-11-30).
        """
        self.call(
            "void",
            "llvm.prefetch.p0",
            ("ptr", "i32 immarg", "i32 immarg", "i32 immarg"),
            f"ptr {address}, i32 0, i32 {3 if self.lanes == 16 else 2}, i32 1",
        )
