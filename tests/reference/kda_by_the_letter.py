"""Kimi Delta Attention by the letter: loops over the formulas, numbers instead of tensors."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

Vector = list[float]
Matrix = list[list[float]]
LN2 = math.log(2.0)


@dataclass(frozen=True)
class Head:
    """One head of one sequence: q, k, a are ``[T][K]``, v is ``[T][V]``, beta ``[T]``."""

    q: Matrix
    k: Matrix
    v: Matrix
    a: Matrix
    beta: Vector
    scale: float
    state: Matrix


@dataclass
class ChunkedHead:
    """Results of the chunked form, rows of all tokens one after another."""

    attn_out: Matrix = field(default_factory=list)
    gk: Matrix = field(default_factory=list)
    Aqk: Matrix = field(default_factory=list)
    Akk: Matrix = field(default_factory=list)
    w: Matrix = field(default_factory=list)
    u: Matrix = field(default_factory=list)
    qg: Matrix = field(default_factory=list)
    kg: Matrix = field(default_factory=list)
    v_new: Matrix = field(default_factory=list)
    h: list[Matrix] = field(default_factory=list)
    final_state: Matrix = field(default_factory=list)


def softplus_gate(x: float, rate_log: float) -> float:
    return -math.exp(rate_log) * math.log(1 + math.exp(x))


def bounded_gate(x: float, rate_log: float, lower_bound: float) -> float:
    return lower_bound / (1 + math.exp(-math.exp(rate_log) * x))


def normalised(x: Vector) -> Vector:
    norm = math.sqrt(sum(value * value for value in x) + 1e-6)
    return [value / norm for value in x]


def recurrent(head: Head) -> tuple[Matrix, Matrix]:
    """Results of all tokens, and the state after them."""
    s = [list(row) for row in head.state]
    k_dims, v_dims = range(len(s)), range(len(s[0]))
    out = []
    for q, k, v, a, beta in zip(head.q, head.k, head.v, head.a, head.beta, strict=True):
        s = [[math.exp(a[i]) * s[i][j] for j in v_dims] for i in k_dims]
        error = [v[j] - sum(s[i][j] * k[i] for i in k_dims) for j in v_dims]
        s = [[s[i][j] + beta * k[i] * error[j] for j in v_dims] for i in k_dims]
        out.append([head.scale * sum(s[i][j] * q[i] for i in k_dims) for j in v_dims])
    return out, s


def chunked(head: Head, chunk_size: int) -> ChunkedHead:
    """Every result of the chunked form."""
    result = ChunkedHead()
    s = [list(row) for row in head.state]
    for start in range(0, len(head.q), chunk_size):
        s = _chunk(head, start, min(start + chunk_size, len(head.q)), chunk_size, s, result)
    result.final_state = s
    return result


def _chunk(
    head: Head, start: int, end: int, chunk_size: int, s: Matrix, result: ChunkedHead
) -> Matrix:
    q, k, v, beta = head.q[start:end], head.k[start:end], head.v[start:end], head.beta[start:end]
    rows = range(end - start)
    k_dims, v_dims = range(len(s)), range(len(s[0]))
    gk = [[sum(head.a[start + j][i] for j in range(r + 1)) / LN2 for i in k_dims] for r in rows]

    def score(x: Matrix, i: int, j: int) -> float:
        return sum(x[i][d] * k[j][d] * 2 ** (gk[i][d] - gk[j][d]) for d in k_dims)

    Aqk = [[head.scale * score(q, i, j) if i >= j else 0.0 for j in rows] for i in rows]
    Lkk = [[beta[i] * score(k, i, j) if i > j else 0.0 for j in rows] for i in rows]
    # Row i of (I + L)^-1 = e_i - sum_j L_ij row_j.
    Akk: Matrix = []
    for i in rows:
        row = [float(i == j) for j in rows]
        for j in range(i):
            row = [x - Lkk[i][j] * y for x, y in zip(row, Akk[j], strict=True)]
        Akk.append(row)
    w = [
        [sum(Akk[i][j] * beta[j] * k[j][d] * 2 ** gk[j][d] for j in rows) for d in k_dims]
        for i in rows
    ]
    u = [[sum(Akk[i][j] * beta[j] * v[j][d] for j in rows) for d in v_dims] for i in rows]
    qg = [[q[i][d] * 2 ** gk[i][d] for d in k_dims] for i in rows]
    kg = [[k[i][d] * 2 ** (gk[-1][d] - gk[i][d]) for d in k_dims] for i in rows]
    v_new = [[u[i][d] - sum(w[i][e] * s[e][d] for e in k_dims) for d in v_dims] for i in rows]
    out = [
        [
            head.scale * sum(qg[i][e] * s[e][d] for e in k_dims)
            + sum(Aqk[i][j] * v_new[j][d] for j in rows)
            for d in v_dims
        ]
        for i in rows
    ]
    padding = [0.0] * (chunk_size - len(rows))
    result.attn_out += out
    result.gk += gk
    result.Aqk += [row + padding for row in Aqk]
    result.Akk += [row + padding for row in Akk]
    result.w += w
    result.u += u
    result.qg += qg
    result.kg += kg
    result.v_new += v_new
    result.h.append(s)
    return [
        [2 ** gk[-1][e] * s[e][d] + sum(kg[j][e] * v_new[j][d] for j in rows) for d in v_dims]
        for e in k_dims
    ]
