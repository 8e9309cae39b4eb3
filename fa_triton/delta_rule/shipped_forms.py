"""Every form of the chunk kernels that is compiled for the Ascend devices.

Sizes are those of models and of CANN's operator. A call has one of two profiles: *serving* (raw
gate, norms and sigmoid inside, a pool of V-first states), with an unbounded gate, or *training*
(everything prepared, K-first states of their own), with a bounded one. Sizes that are no power of
two are compiled in the serving profile, which takes the most room.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator

import torch

from fa_triton.delta_rule.problem import ChunkKdaProblem
from fa_triton.delta_rule.tiles import ChunkTileKey, choose_chunk_tiles
from fa_triton.delta_rule.variants import chunk_forms
from fa_triton.kernel_form import KernelForm
from fa_triton.padding import padded
from fa_triton.validation.delta_rule import DeltaRuleSizes, GateOptions

CHUNK_SIZES = (64, 128)
HEAD_DIMS = ((64, 64), (128, 128), (128, 256), (256, 256))
# head dims of keys and values, and the chunk size
PADDED_SIZES = (((96, 96), 64), ((192, 192), 64), ((192, 192), 128))
# K and V with everything: other dtypes, small chunks, more options
_MAIN_DIMS = (128, 128)
_SMALL_CHUNKS = (16, 32)

_SOFTPLUS = GateOptions(gate="softplus", is_bounded=False, lower_bound=-5.0, has_dt_bias=True)
_BOUNDED = GateOptions(gate="bounded", is_bounded=True, lower_bound=-5.0, has_dt_bias=True)
_GIVEN = GateOptions(gate="given", is_bounded=False, lower_bound=-5.0, has_dt_bias=False)
_GIVEN_BOUNDED = dataclasses.replace(_GIVEN, is_bounded=True)


def shipped_chunk_forms(device: str) -> Iterator[KernelForm]:
    """Forms for one device; some come more than once."""
    for problem in _problems():
        sizes = problem.sizes
        key = ChunkTileKey(
            device, padded(sizes.key_dim), padded(sizes.value_dim), problem.chunk_size
        )
        forms = chunk_forms(problem, choose_chunk_tiles(key))
        for found in vars(forms).values():
            if isinstance(found, tuple):
                yield from found
            elif found is not None:
                yield found


def _problems() -> Iterator[ChunkKdaProblem]:
    for dims, chunk in itertools.product(HEAD_DIMS, CHUNK_SIZES):
        yield _serving(dims, chunk)
        yield dataclasses.replace(_training(dims, chunk), gate=_GIVEN_BOUNDED)
        if dims == _MAIN_DIMS:
            yield from _more_options(dims, chunk)
    for dims, chunk in PADDED_SIZES:
        yield _serving(dims, chunk)
    for chunk in _SMALL_CHUNKS:
        yield _serving(_MAIN_DIMS, chunk)
        yield dataclasses.replace(_training(_MAIN_DIMS, chunk), gate=_GIVEN_BOUNDED)


def _more_options(dims: tuple[int, int], chunk: int) -> Iterator[ChunkKdaProblem]:
    """The other gate of each profile, fp16, 16-bit pools, gates in fp32, and no states at all."""
    for profile in (_serving, _training):
        yield profile(dims, chunk, torch.float16)
    serving = _serving(dims, chunk)
    yield dataclasses.replace(serving, gate=_BOUNDED)
    yield _training(dims, chunk)
    yield dataclasses.replace(serving, state_dtype=torch.bfloat16)
    sizes = dataclasses.replace(serving.sizes, gate_dtype=torch.float32)
    yield dataclasses.replace(serving, sizes=sizes, gate=_BOUNDED)
    yield dataclasses.replace(
        _training(dims, chunk), has_initial_state=False, results=("attn_out",), state_v_first=True
    )


def _serving(
    dims: tuple[int, int], chunk: int, dtype: torch.dtype = torch.bfloat16
) -> ChunkKdaProblem:
    return ChunkKdaProblem(
        layout="TND",
        sizes=_sizes(dims, dtype, gate_dtype=torch.bfloat16, beta_dtype=torch.bfloat16),
        gate=_SOFTPLUS,
        has_beta_sigmoid=True,
        beta_scale=1.0,
        chunk_size=chunk,
        num_sequences=1,
        is_packed=True,
        scale=1.0,
        state_v_first=True,
        has_qk_norm=True,
        has_initial_state=True,
        has_state_indices=True,
        has_state_mask=True,
        state_dtype=torch.float32,
        results=("attn_out", "final_state"),
    )


def _training(
    dims: tuple[int, int], chunk: int, dtype: torch.dtype = torch.bfloat16
) -> ChunkKdaProblem:
    return dataclasses.replace(
        _serving(dims, chunk),
        sizes=_sizes(dims, dtype, gate_dtype=torch.float32, beta_dtype=torch.float32),
        gate=_GIVEN,
        has_beta_sigmoid=False,
        has_qk_norm=False,
        state_v_first=False,
        has_state_indices=False,
        has_state_mask=False,
    )


def _sizes(
    dims: tuple[int, int],
    dtype: torch.dtype,
    *,
    gate_dtype: torch.dtype,
    beta_dtype: torch.dtype,
) -> DeltaRuleSizes:
    return DeltaRuleSizes(
        batch_size=1,
        num_tokens=1,
        num_heads=1,
        num_v_heads=1,
        key_dim=dims[0],
        value_dim=dims[1],
        dtype=dtype,
        gate_dtype=gate_dtype,
        beta_dtype=beta_dtype,
        device=torch.device("cpu"),
    )
