"""Attention written element by element from its definition: slow, and too plain to be wrong."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np


def attend_row(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    *,
    position: int,
    scale: float,
    window: tuple[int, int] = (-1, -1),
    sink: float | None = None,
    softcap: float = 0.0,
    slope: float = 0.0,
    lse_includes_sink: bool = False,
    bias: Sequence[float] | None = None,
    hidden: Sequence[bool] | None = None,
    hidden_rows_are_means: bool = False,
) -> tuple[np.ndarray, float]:
    """One query ``[D]`` over keys ``[S, D]`` and values ``[S, Dv]``.

    ``position`` is where the query stands among the keys: its row plus ``skv - sq``. ``bias`` is
    added to the logits, ``hidden`` keys do not count; a row that sees none because of them is 0 or
    the mean of the values that it would see without them.
    """
    left, right = window
    logits: dict[int, float] = {}
    in_window: list[int] = []
    for j in range(len(k)):
        if left >= 0 and j < position - left:
            continue
        if right >= 0 and j > position + right:
            continue
        in_window.append(j)
        if hidden is not None and hidden[j]:
            continue
        logit = scale * math.fsum(float(a) * float(b) for a, b in zip(q, k[j], strict=True))
        if softcap:
            logit = softcap * math.tanh(logit / softcap)
        logits[j] = logit - slope * abs(position - j) + (0.0 if bias is None else bias[j])
    if not logits:
        empty = sink if sink is not None and lse_includes_sink else math.inf
        is_mean = hidden_rows_are_means and in_window and sink is None
        out = v[in_window].astype(float).mean(0) if is_mean else np.zeros(v.shape[1])
        return out, empty
    top = max([*logits.values(), *([] if sink is None else [sink])])
    keys_sum = math.fsum(math.exp(logit - top) for logit in logits.values())
    total = keys_sum + (0.0 if sink is None else math.exp(sink - top))
    out = sum(math.exp(logit - top) / total * v[j].astype(float) for j, logit in logits.items())
    counted = total if lse_includes_sink else keys_sum
    return np.asarray(out), math.log(counted) + top
