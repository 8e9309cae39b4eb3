"""Which layouts exist and which go together."""

from __future__ import annotations

from dataclasses import dataclass

from fa_triton.layout import DENSE_LAYOUTS, KV_LAYOUTS_OF, LAYOUTS, OUT_LAYOUTS_OF
from fa_triton.validation.scalars import one_of


@dataclass(frozen=True)
class Layouts:
    """Checked layout names of one call."""

    q: str
    kv: str
    out: str


def check_layouts(layout_q: object, layout_kv: object, layout_out: object) -> Layouts:
    """Check the three layout names, alone and together."""
    q = one_of("layout_q", layout_q, tuple(DENSE_LAYOUTS))
    kv = one_of("layout_kv", layout_kv, tuple(LAYOUTS))
    out = one_of("layout_out", layout_out, tuple(DENSE_LAYOUTS))
    if kv not in KV_LAYOUTS_OF[q]:
        allowed = ", ".join(KV_LAYOUTS_OF[q])
        raise ValueError(f"`layout_kv` must be one of {allowed} with layout_q={q!r}, got {kv!r}")
    if out not in OUT_LAYOUTS_OF[q]:
        allowed = " or ".join(OUT_LAYOUTS_OF[q])
        raise ValueError(f"`layout_out` must be {allowed} with layout_q={q!r}, got {out!r}")
    return Layouts(q, kv, out)
