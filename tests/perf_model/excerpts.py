"""Small HIVM kernels of known counts, and the launches that run them."""

from __future__ import annotations

from pathlib import Path

from perf.model.interpreter import Launch, Streams, execute
from perf.model.mlir import Module, parse

DATA = Path(__file__).parent / "data"


def module(name: str) -> Module:
    """Read an excerpt."""
    return parse((DATA / f"{name}.mlir").read_text())


def vector_streams(tiles: int) -> Streams:
    """Exponentials of ``tiles`` tiles of 4 x 96, on one vector core."""
    launch = Launch(names=("x", "tiles", "n"), scalars={"n": 1}, contents={"tiles": [0, tiles]})
    return execute(module("vector"), launch, block=1)


def mixed_streams() -> Streams:
    """Two products of 16 x 128 and 128 x 32, handed to two vector cores."""
    return execute(module("mixed"), Launch(names=("k", "n"), scalars={"n": 1}, contents={}))
