"""Frozen descriptions of one validated call: sizes and options, no tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypedDict

from fa_triton.layout import dense_shape, is_paged

if TYPE_CHECKING:
    import torch

SideName = Literal["q", "kv"]

NO_MASK = 0
CAUSAL = 3
WINDOW = 4


class AttnOptions(TypedDict, total=False):
    """Keyword arguments of ``flash_attn``."""

    block_table: torch.Tensor | None
    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_kv: torch.Tensor | None
    seqused_q: torch.Tensor | None
    seqused_kv: torch.Tensor | None
    sinks: torch.Tensor | None
    attn_mask: torch.Tensor | None
    metadata: torch.Tensor | None
    softmax_scale: float
    mask_mode: int | None
    win_left: int | None
    win_right: int | None
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    layout_q: str
    layout_kv: str
    layout_out: str
    return_softmax_lse: bool
    softcap: float
    alibi_slopes: torch.Tensor | None
    lse_includes_sink: bool
    batch_invariant: bool


class MetadataOptions(TypedDict, total=False):
    """Keyword arguments of ``flash_attn_metadata`` but for the device."""

    cu_seqlens_q: torch.Tensor | None
    cu_seqlens_kv: torch.Tensor | None
    seqused_q: torch.Tensor | None
    seqused_kv: torch.Tensor | None
    batch_size: int | None
    max_seqlen_q: int | None
    max_seqlen_kv: int | None
    page_size: int | None
    mask_mode: int | None
    win_left: int | None
    win_right: int | None
    layout_q: str
    layout_kv: str
    layout_out: str
    planner: str
    num_aic: int | None
    num_aiv: int | None
    block_q: int | None
    block_kv: int | None
    batch_invariant: bool


@dataclass(frozen=True, kw_only=True)
class Side:
    """What a :class:`BatchProblem` says about the lengths of q, or of k and v."""

    name: SideName
    layout: str
    seqlen: int
    total: int
    max_seqlen: int
    has_cu_seqlens: bool
    has_seqused: bool

    @property
    def has_length_tensors(self) -> bool:
        """Whether tensors say the lengths; else all are the sequence axis."""
        return self.has_cu_seqlens or self.has_seqused


@dataclass(frozen=True, kw_only=True)
class BatchProblem:
    """What a plan depends on: batch, heads, layouts, mask, and where the lengths come from.

    Attributes:
        batch_size: Number of sequences.
        num_heads_q: Query heads.
        num_heads_kv: Key/value heads, a divisor of ``num_heads_q``.
        head_dim: Head dimension of q and k.
        layout_q: Layout of q.
        layout_kv: Layout of k and v.
        layout_out: Layout of the result.
        seqlen_q: Sequence axis of a dense q; for TND the ``max_seqlen_q`` argument, or -1.
        seqlen_kv: Sequence axis of dense k and v; for pages the tokens that a row of the block
            table can hold; for TND the ``max_seqlen_kv`` argument, or -1.
        total_q: T of TND, else ``batch_size * seqlen_q``; -1 where unknown.
        total_kv: T of TND, else ``batch_size * seqlen_kv``; -1 where unknown.
        max_seqlen_q: The argument, an upper bound; -1 where not given.
        max_seqlen_kv: The argument, an upper bound; -1 where not given.
        page_size: Tokens of one page; 0 without pages, or where a plan does not know it.
        mask_mode: 0 none, 3 causal, 4 window.
        win_left: Keys visible left of the diagonal in mode 4, -1 unlimited.
        win_right: Keys visible right of the diagonal in mode 4, -1 unlimited.
        has_cu_seqlens_q: Whether q is packed by cumulative lengths.
        has_cu_seqlens_kv: Whether k and v are packed by cumulative lengths.
        has_seqused_q: Whether actual query lengths are given.
        has_seqused_kv: Whether actual key lengths are given.
        batch_invariant: Whether a sequence's result must not depend on the rest of the batch.
    """

    batch_size: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    layout_q: str
    layout_kv: str
    layout_out: str
    seqlen_q: int
    seqlen_kv: int
    total_q: int
    total_kv: int
    max_seqlen_q: int
    max_seqlen_kv: int
    page_size: int
    mask_mode: int
    win_left: int
    win_right: int
    has_cu_seqlens_q: bool
    has_cu_seqlens_kv: bool
    has_seqused_q: bool
    has_seqused_kv: bool
    batch_invariant: bool

    def side(self, name: SideName) -> Side:
        """The fields of one side, for rules that hold on both."""
        if name == "q":
            return Side(
                name="q",
                layout=self.layout_q,
                seqlen=self.seqlen_q,
                total=self.total_q,
                max_seqlen=self.max_seqlen_q,
                has_cu_seqlens=self.has_cu_seqlens_q,
                has_seqused=self.has_seqused_q,
            )
        return Side(
            name="kv",
            layout=self.layout_kv,
            seqlen=self.seqlen_kv,
            total=self.total_kv,
            max_seqlen=self.max_seqlen_kv,
            has_cu_seqlens=self.has_cu_seqlens_kv,
            has_seqused=self.has_seqused_kv,
        )

    @property
    def group(self) -> int:
        """Query heads that share one key/value head."""
        return self.num_heads_q // self.num_heads_kv

    @property
    def window(self) -> tuple[int, int]:
        """Bounds ``(left, right)`` of the visible keys around the diagonal, -1 unlimited."""
        if self.mask_mode == WINDOW:
            return self.win_left, self.win_right
        return -1, 0 if self.mask_mode == CAUSAL else -1

    @property
    def is_causal(self) -> bool:
        """Whether the diagonal is the last visible key of a row."""
        return self.window[1] == 0

    @property
    def has_left_window(self) -> bool:
        """Whether keys far left of the diagonal are hidden."""
        return self.window[0] >= 0

    @property
    def has_right_window(self) -> bool:
        """Whether keys right of the diagonal are hidden, at once (causal) or after some."""
        return self.window[1] >= 0

    @property
    def is_paged(self) -> bool:
        """Whether k and v lie in the pages of a cache."""
        return is_paged(self.layout_kv)


NO_SCALES = 0
PER_CHANNEL = 1
PER_TOKEN = 2


@dataclass(frozen=True, kw_only=True)
class CacheForm:
    """What keys and values have beside themselves; ``flash_attn`` has none of it.

    Attributes:
        scales: Of stored integers: ``NO_SCALES``, ``PER_CHANNEL`` or ``PER_TOKEN``.
        has_offsets: Whether offsets are added to the integers first.
        has_places: Whether every sequence says where its keys start, as in a list of tensors.
        has_first_columns: Whether it also says which column of bias, mask and scales that is.
        has_bias: Whether logits get a bias per key.
        has_mask: Whether bytes say which keys are hidden.
        has_mask_rows: Whether rows differ in that.
    """

    scales: int = NO_SCALES
    has_offsets: bool = False
    has_places: bool = False
    has_first_columns: bool = False
    has_bias: bool = False
    has_mask: bool = False
    has_mask_rows: bool = False

    @property
    def is_integer(self) -> bool:
        """Whether keys and values are stored integers."""
        return self.scales != NO_SCALES


PLAIN_CACHE = CacheForm()


@dataclass(frozen=True, kw_only=True)
class AttnProblem(BatchProblem):
    """One validated call of ``flash_attn``.

    Attributes:
        head_dim_v: Head dimension of v and of the result.
        dtype: Of q, k, v and the result.
        device: Of every tensor.
        softmax_scale: Factor on q·k.
        has_sinks: Whether every query head has an attention sink.
        has_alibi_slopes: Whether logits get a linear distance bias.
        softcap: Bound of the logits by ``softcap * tanh(logit / softcap)``, 0 for none.
        return_softmax_lse: Whether the log-sum-exp is wanted.
        lse_includes_sink: Whether the log-sum-exp counts the sink.
        cache: What keys and values have beside themselves.
    """

    head_dim_v: int
    dtype: torch.dtype
    device: torch.device
    softmax_scale: float
    has_sinks: bool
    has_alibi_slopes: bool
    softcap: float
    return_softmax_lse: bool
    lse_includes_sink: bool
    cache: CacheForm = PLAIN_CACHE

    @property
    def out_shape(self) -> tuple[int, ...]:
        """Shape of the result in ``layout_out``."""
        return dense_shape(
            self.layout_out,
            batch_size=self.batch_size,
            tokens=self._tokens_q,
            num_heads=self.num_heads_q,
            head_dim=self.head_dim_v,
        )

    @property
    def lse_shape(self) -> tuple[int, ...]:
        """Shape of the log-sum-exp: ``(B, Nq, Sq)``, or ``(Nq, Tq)`` for TND queries."""
        if self.layout_q == "TND":
            return self.num_heads_q, self._tokens_q
        return self.batch_size, self.num_heads_q, self._tokens_q

    @property
    def _tokens_q(self) -> int:
        return self.total_q if self.layout_q == "TND" else self.seqlen_q


@dataclass(frozen=True, kw_only=True)
class MetadataProblem(BatchProblem):
    """One validated call of ``flash_attn_metadata``.

    Attributes:
        planner: Name of the planner.
        num_aic: Matrix cores to plan for, None for the device's.
        num_aiv: Vector cores to plan for, None for the device's.
        block_q: Rows of a plan block, None for the planner's choice.
        block_kv: Keys of a plan block, None for the planner's choice.
    """

    planner: str
    num_aic: int | None
    num_aiv: int | None
    block_q: int | None
    block_kv: int | None
