"""A case as its file states it; the names are those of CANN's public test lists."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

Range = tuple[float, float]
ErrorName = Literal["ValueError", "TypeError", "NotImplementedError"]


class Ours(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What this library does with a case of somebody else's list.

    Attributes:
        changes: Fields to replace before the case is run: what the file leaves out, states against
            the operator's own rules, or breaks besides the rule it names.
        error: The exception that refuses the case.
        says: Parts of its message.
        accepted: Why the case is taken although the file expects a refusal.
        refused: Why the case is refused although the file expects it to be taken.
        not_applicable: Why nothing in this library corresponds to the case.
        note: Why there are changes.
    """

    changes: dict[str, Any] = {}
    error: ErrorName | None = None
    says: tuple[str, ...] = ()
    accepted: str = ""
    refused: str = ""
    not_applicable: str = ""
    note: str = ""


class ArangeTable(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A block table that counts 0, 1, 2 … row by row."""

    kind: Literal["arange"]
    shape: tuple[int, int]


class AttentionCase(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    rename={
        "batch_size": "B",
        "num_heads_q": "N1",
        "num_heads_kv": "N2",
        "seqlen_q": "S1",
        "seqlen_kv": "S2",
        "head_dim": "D",
        "head_dim_v": "DV",
        "dtype": "Dtype",
    },
):
    """One call of ``flash_attn`` with random tensors.

    Attributes:
        id: Name of the case.
        group: Name of the list it comes from.
        batch_size: Sequences; with cumulative lengths these tell it.
        num_heads_q: Query heads.
        num_heads_kv: Key/value heads, by default those of q.
        seqlen_q: Query tokens per sequence in a layout with a sequence axis.
        seqlen_kv: Keys per sequence, by default as many as queries.
        head_dim: Head dim of q and k.
        head_dim_v: Head dim of v, by default that of q.
        dtype: Of q, k, v and the result.
        layout_q: Layout of q.
        layout_kv: Layout of k and v, by default that of q.
        layout_out: Layout of the result, by default that of q.
        scale: Factor on q·k, by default ``1/sqrt(D)``.
        mask_mode: 0 none, 3 causal, 4 window.
        win_left: Visible keys left of the diagonal; counts in mask mode 4 only.
        win_right: Visible keys right of the diagonal; counts in mask mode 4 only.
        q_range: Bounds of the uniform values of q; by default they are normal.
        k_range: Bounds of the values of k.
        v_range: Bounds of the values of v.
        seqused_q: Actual query lengths.
        seqused_kv: Actual key lengths; with pages by default ``seqlen_kv`` each.
        cu_seqlens_q: Starts of packed queries.
        cu_seqlens_kv: Starts of packed keys, by default those of the queries.
        block_table: Page ids; by default pages are numbered in the order of the tokens and the
            rest of the table is -1.
        block_table_shape: Shape of the default table.
        block_size: Tokens of a page.
        return_softmax_lse: Whether the log-sum-exp is wanted.
        nc_kv_dims: Axes of k and v with gaps between their elements in memory.
        atten_mask_dtype: Ignored: the template is int8.
        atten_mask_layout: Ignored: the template is a square.
        ours: What this library does with the case if that is not plain.
    """

    id: str
    group: str = ""
    batch_size: int | None = None
    num_heads_q: int
    num_heads_kv: int | None = None
    seqlen_q: int | None = None
    seqlen_kv: int | None = None
    head_dim: int
    head_dim_v: int | None = None
    dtype: Literal["fp16", "bf16", "fp32"]
    layout_q: str
    layout_kv: str | None = None
    layout_out: str | None = None
    scale: float | None = None
    mask_mode: int = 0
    win_left: int = -1
    win_right: int = -1
    q_range: Range | None = None
    k_range: Range | None = None
    v_range: Range | None = None
    seqused_q: list[int] | None = None
    seqused_kv: list[int] | None = None
    cu_seqlens_q: list[int] | None = None
    cu_seqlens_kv: list[int] | None = None
    block_table: ArangeTable | list[list[int]] | None = None
    block_table_shape: tuple[int, int] | None = None
    block_size: int | None = None
    return_softmax_lse: bool | int = False
    nc_kv_dims: int | tuple[int, ...] | None = None
    atten_mask_dtype: str | None = None
    atten_mask_layout: str | None = None
    ours: Ours = Ours()

    def __str__(self) -> str:
        """Describe the case in one short line."""
        layout_kv = self.layout_kv or self.layout_q
        layouts = self.layout_q if layout_kv == self.layout_q else f"{self.layout_q}/{layout_kv}"
        heads = f"N{self.num_heads_q}"
        if self.num_heads_kv not in (None, self.num_heads_q):
            heads += f"/{self.num_heads_kv}"
        batch = self.batch_size if self.cu_seqlens_q is None else len(self.cu_seqlens_q) - 1
        lengths = ""
        if self.seqlen_q is not None:
            lengths = f" S{self.seqlen_q}"
            if self.seqlen_kv not in (None, self.seqlen_q):
                lengths += f"/{self.seqlen_kv}"
        mask = {0: "", 3: " causal", 4: f" window {self.win_left},{self.win_right}"}
        return (
            f"{layouts} {self.dtype} B{batch} {heads}{lengths} D{self.head_dim}"
            f"{mask.get(self.mask_mode, f' mask {self.mask_mode}')}"
        )


class RuleCase(msgspec.Struct, frozen=True, kw_only=True):
    """A row that states shapes and options of one call, and whether CANN's operator takes it.

    Attributes:
        id: Name of the row.
        group: Name of the list it comes from.
        expect: ``SUCCESS``, or another word for a refusal.
        annotation: The rule the row is about.
        cells: The other columns as the file has them.
        ours: What this library does with it.
    """

    id: str
    group: str = ""
    expect: str
    annotation: str = ""
    cells: dict[str, Any]
    ours: Ours = Ours()

    @property
    def succeeds(self) -> bool:
        """Whether the file expects the call to be taken."""
        return self.expect == "SUCCESS"

    def __str__(self) -> str:
        """Name the rule."""
        return self.annotation or f"{self.cells.get('layout_q')} {self.cells.get('q_dtype')}"
