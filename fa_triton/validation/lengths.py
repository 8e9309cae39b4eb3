"""Form of the tensors that give sequence lengths; their values stay unread."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fa_triton.layout import is_paged
from fa_triton.problem import SideName
from fa_triton.validation.tensors import check_batch_size, check_small_tensor


@dataclass(frozen=True)
class SideLengths:
    """What is known about the lengths of one side (q or kv) without reading a device."""

    batch_size: int | None
    has_cu_seqlens: bool
    has_seqused: bool


def check_length_tensors(
    side: SideName, layout: str, cu_seqlens: object, seqused: object, device: torch.device | None
) -> SideLengths:
    """Check ``cu_seqlens`` and ``seqused`` of one side against its layout, where they are given."""
    batch_size: int | None = None
    if layout != "TND" and cu_seqlens is not None:
        raise ValueError(
            f"`cu_seqlens_{side}` must be None with layout_{side}={layout!r} (only TND is packed), "
            f"got a tensor"
        )
    if cu_seqlens is not None:
        name = f"cu_seqlens_{side}"
        tensor = check_small_tensor(
            name, cu_seqlens, dtype=torch.int32, shape=(None,), device=device, meaning="(B + 1,)"
        )
        batch_size = tensor.shape[0] - 1
        check_batch_size(f"the batch size of `{name}` (its length - 1)", batch_size)
    if seqused is not None:
        name = f"seqused_{side}"
        tensor = check_small_tensor(
            name,
            seqused,
            dtype=torch.int32,
            shape=(batch_size,),
            device=device,
            meaning="(B,)" if batch_size is None else f"({batch_size},)",
        )
        batch_size = tensor.shape[0]
        check_batch_size(f"the batch size of `{name}`", batch_size)
    return SideLengths(batch_size, cu_seqlens is not None, seqused is not None)


def require_length_tensors(side: SideName, layout: str, lengths: SideLengths) -> None:
    """Refuse a packed side without ``cu_seqlens`` and a paged one without ``seqused``."""
    wanted = None
    if layout == "TND" and not lengths.has_cu_seqlens:
        wanted = f"cu_seqlens_{side}"
    elif is_paged(layout) and not lengths.has_seqused:
        wanted = f"seqused_{side}"
    if wanted is not None:
        raise ValueError(f"`{wanted}` must be given with layout_{side}={layout!r}, got None")


def common_batch_size(sources: dict[str, int | None]) -> int:
    """The one batch size that all sources agree on; None is a source that says nothing."""
    known = {name: size for name, size in sources.items() if size is not None}
    if not known:
        raise ValueError(
            f"the batch size must be given by one of {', '.join(sources)}, got none of them"
        )
    if len(set(known.values())) > 1:
        told = ", ".join(f"{size} from {name}" for name, size in known.items())
        raise ValueError(f"the batch size must be the same everywhere, got {told}")
    size = next(iter(known.values()))
    check_batch_size("the batch size", size)
    return size
