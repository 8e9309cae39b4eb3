"""The metadata table: a plan as int32 words that kernels walk and calls can check.

Words (``docs/planner.md`` has the table):
    0..15 header · then one segment of 16 words per core and section · then the combine part: for
    section_stream_k one segment of 16 words per vector core and section, for balanced two words
    per vector core and a list of tasks of 8 words.
"""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

import numpy as np

from fa_triton.planner.schedule import BALANCED, SECTION_STREAM_K, TASK_WORDS, Plan
from fa_triton.planner.work import LAYOUTS, MASK_MODES, problem_fingerprint

HEADER_WORDS = 16
SEGMENT_WORDS = 16

PLANNER_CODES = {SECTION_STREAM_K: 0, BALANCED: 1}
LAYOUT_CODES = {layout: code for code, layout in enumerate(("BSND", "BNSD", "TND"))}
# bits of the form of a balanced table
FORM_ONE_HEAD = 1
FORM_INVARIANT = 2

# tables of section_stream_k are allocated in steps of so many words
_SECTION_TABLE_STEP = 4096


@dataclass(frozen=True)
class Header:
    """The first 16 words, in order.

    Attributes:
        num_sections: Sections, all launched at once.
        is_fd: 1 if the combine phase runs.
        block_q: Rows M of a row block.
        block_kv: Keys S2 of a key block.
        num_aic: Attention segments per section, one program each.
        num_aiv: Combine segments per section.
        form: section_stream_k: code of the output layout; balanced: bit 0 for rows of one head,
            bit 1 for a batch-invariant plan.
        planner: Code of the planner.
        used_words: Words that mean something.
        num_slots: Partial slots of the whole table.
        fingerprint: Identity of the problem.
        longest_q: Longest planned query.
        longest_kv: Longest planned key sequence.
        num_tasks: Combine tasks.
        batch_size: Sequences.
        slots_per_section: Added to slot numbers once per section; 0 for one section.
    """

    num_sections: int
    is_fd: int
    block_q: int
    block_kv: int
    num_aic: int
    num_aiv: int
    form: int
    planner: int
    used_words: int
    num_slots: int
    fingerprint: int
    longest_q: int
    longest_kv: int
    num_tasks: int
    batch_size: int
    slots_per_section: int

    def check_length(self, words: int) -> None:
        """Refuse a table of fewer words than its header says.

        Raises:
            ValueError: Names both.
        """
        if words < self.used_words:
            raise ValueError(
                f"`metadata` must have the {self.used_words} words its header says, got {words}"
            )

    @property
    def is_section_stream_k(self) -> bool:
        """Whether the table is CANN's, without cut flags and task list."""
        return self.planner == PLANNER_CODES[SECTION_STREAM_K]

    @property
    def one_head_rows(self) -> bool:
        """Whether ``bn`` counts query heads and rows are positions of one of them."""
        return self.planner == PLANNER_CODES[BALANCED] and bool(self.form & FORM_ONE_HEAD)

    @property
    def batch_invariant(self) -> bool:
        """Whether the cuts of a sequence depend on nothing but the sequence."""
        return self.planner == PLANNER_CODES[BALANCED] and bool(self.form & FORM_INVARIANT)

    @property
    def vectors_offset(self) -> int:
        """First word of the combine part."""
        return HEADER_WORDS + self.num_sections * self.num_aic * SEGMENT_WORDS

    @property
    def tasks_offset(self) -> int:
        """First word of the task list (balanced)."""
        return self.vectors_offset + _task_index_words(self.num_aiv)

    @property
    def expected_words(self) -> int:
        """Words that a table with these counts uses."""
        if self.is_section_stream_k:
            return self.vectors_offset + self.num_sections * self.num_aiv * SEGMENT_WORDS
        return self.tasks_offset + self.num_tasks * TASK_WORDS


def encode(plan: Plan) -> np.ndarray:
    """Write a plan as an int32 table.

    Args:
        plan: The plan of either planner.

    Returns:
        The words. section_stream_k: zero-filled up to CANN's length; balanced: as long as needed.
    """
    header = _header(plan)
    segments = plan.num_sections * plan.num_aic
    words = np.zeros(_table_words(plan, header), dtype=np.int32)
    words[:HEADER_WORDS] = astuple(header)
    body = words[HEADER_WORDS : header.vectors_offset].reshape(segments, SEGMENT_WORDS)
    body[:, 0:3] = plan.starts
    body[:, 3:6] = plan.ends
    body[:, 6] = plan.first_slots
    body[:, 7] = plan.row_blocks
    body[:, 8] = plan.cuts
    if plan.planner == BALANCED:
        index = words[header.vectors_offset :][: 2 * plan.num_aiv]
        index.reshape(-1, 2)[:] = plan.task_ranges
        words[header.tasks_offset : header.used_words].reshape(-1, TASK_WORDS)[:] = plan.tasks
    elif plan.num_tasks:
        busy = np.flatnonzero(plan.task_ranges[:, 1])
        vectors = words[header.vectors_offset : header.used_words].reshape(-1, SEGMENT_WORDS)
        # the columns of a task are always all of them here, and not written
        vectors[busy, 0:6] = plan.tasks[plan.task_ranges[busy, 0], 0:6]
    return words


def decode_segments(words: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Read the attention segments and the combine tasks back from a table.

    Args:
        words: A table of either planner.

    Returns:
        Segments ``[sections*num_aic, 16]`` and tasks ``[tasks, 8]`` in the order of the vector
        cores. Tasks of section_stream_k have no columns: words 6 and 7 are 0.
    """
    header = read_header(words)
    segments = words[HEADER_WORDS : header.vectors_offset].reshape(-1, SEGMENT_WORDS)
    if header.planner == PLANNER_CODES[BALANCED]:
        tasks = words[header.tasks_offset : header.used_words].reshape(-1, TASK_WORDS)
        return segments, tasks
    vectors = words[header.vectors_offset : header.used_words].reshape(-1, SEGMENT_WORDS)
    return segments, vectors[vectors[:, 5] > 0, :TASK_WORDS]


def task_ranges(words: np.ndarray) -> np.ndarray:
    """First task and number of tasks of every vector core of a balanced table, ``[aiv, 2]``."""
    header = read_header(words)
    return words[header.vectors_offset :][: 2 * header.num_aiv].reshape(-1, 2)


def read_header(words: np.ndarray) -> Header:
    """Read the header words and refuse what cannot be a metadata table.

    Args:
        words: A table, or at least its first 16 words.

    Returns:
        The header.

    Raises:
        ValueError: The words are not a header.
    """
    if words.ndim != 1 or words.size < HEADER_WORDS:
        raise ValueError(
            f"`metadata` must be one-dimensional with at least {HEADER_WORDS} words, "
            f"got shape {tuple(words.shape)}"
        )
    header = Header(*(int(word) for word in words[:HEADER_WORDS]))
    positive = ("num_sections", "block_q", "block_kv", "num_aic", "num_aiv", "batch_size")
    wrong = [name for name in positive if getattr(header, name) < 1]
    wrong += [field.name for field in fields(header) if getattr(header, field.name) < 0]
    if header.planner not in PLANNER_CODES.values():
        wrong.append("planner")
    if not wrong and header.used_words != header.expected_words:
        wrong.append("used_words")
    if wrong:
        raise ValueError(
            "`metadata` must be a table made by flash_attn_metadata, "
            f"got a header whose {wrong[0]} is {getattr(header, wrong[0])}"
        )
    return header


def check_header(
    header: Header,
    *,
    batch_size: int,
    num_heads_q: int,
    num_heads_kv: int,
    head_dim: int,
    mask_mode: int,
    win_left: int,
    win_right: int,
    layout_q: str,
    layout_out: str | None = None,
) -> None:
    """Refuse a table that was made for another problem.

    Args:
        header: Header of the table.
        batch_size: Sequences of the call.
        num_heads_q: Query heads of the call.
        num_heads_kv: Key heads of the call.
        head_dim: Head dim of the call.
        mask_mode: Mask mode of the call.
        win_left: Left window of the call.
        win_right: Right window of the call.
        layout_q: Query layout of the call.
        layout_out: Output layout of the call; compared where the table holds one.

    Raises:
        ValueError: Names what differs.
    """
    if header.batch_size != batch_size:
        raise ValueError(
            f"`metadata` must be made for the batch of the call, got a table for "
            f"{header.batch_size} sequences and a batch of {batch_size}"
        )
    problem: dict[str, int | str] = {
        "batch_size": batch_size,
        "num_heads_q": num_heads_q,
        "num_heads_kv": num_heads_kv,
        "head_dim": head_dim,
        "mask_mode": mask_mode,
        "win_left": win_left,
        "win_right": win_right,
        "layout_q": layout_q,
    }
    if header.fingerprint != _fingerprint(problem):
        raise ValueError(
            "`metadata` must be made for the problem of the call, got "
            + _difference(header, problem)
        )
    holds_layout = header.planner == PLANNER_CODES[SECTION_STREAM_K]
    if layout_out is not None and holds_layout and header.form != LAYOUT_CODES[layout_out]:
        planned = LAYOUTS[header.form] if header.form < len(LAYOUTS) else header.form
        raise ValueError(
            "`metadata` must be made for the output layout of the call, "
            f"got a table for {planned} and layout_out={layout_out!r}"
        )


def _fingerprint(problem: dict[str, int | str]) -> int:
    return problem_fingerprint(**problem)  # pyright: ignore[reportArgumentType]


def _difference(header: Header, problem: dict[str, int | str]) -> str:
    """Find the one argument that explains a foreign fingerprint, by trying its likely values."""
    candidates: dict[str, tuple[int | str, ...] | range] = {
        "mask_mode": MASK_MODES,
        "layout_q": LAYOUTS,
        "num_heads_q": range(1, 257),
        "num_heads_kv": range(1, 257),
        "head_dim": range(8, 577, 8),
        "win_left": range(-1, 8193),
        "win_right": range(-1, 8193),
    }
    for name, values in candidates.items():
        for value in values:
            if _fingerprint({**problem, name: value}) == header.fingerprint:
                return f"a table for {name}={value!r} and a call with {name}={problem[name]!r}"
    return (
        "a table whose heads, head dim, mask, windows or query layout differ from the call's "
        f"({', '.join(f'{name}={value!r}' for name, value in problem.items())})"
    )


def _header(plan: Plan) -> Header:
    work = plan.work
    if plan.planner == BALANCED:
        form = plan.one_head_rows * FORM_ONE_HEAD + plan.batch_invariant * FORM_INVARIANT
        combine_words = _task_index_words(plan.num_aiv) + plan.num_tasks * TASK_WORDS
    else:
        form = LAYOUT_CODES[work.layout_out]
        combine_words = plan.num_sections * plan.num_aiv * SEGMENT_WORDS
    attention_words = plan.num_sections * plan.num_aic * SEGMENT_WORDS
    return Header(
        num_sections=plan.num_sections,
        is_fd=int(plan.is_fd),
        block_q=plan.block_q,
        block_kv=plan.block_kv,
        num_aic=plan.num_aic,
        num_aiv=plan.num_aiv,
        form=form,
        planner=PLANNER_CODES[plan.planner],
        used_words=HEADER_WORDS + attention_words + combine_words,
        num_slots=plan.num_slots,
        fingerprint=work.fingerprint,
        longest_q=int(work.q_lens.max()),
        longest_kv=int(work.kv_lens.max()),
        num_tasks=plan.num_tasks,
        batch_size=work.batch_size,
        slots_per_section=plan.slots_per_section if plan.num_sections > 1 else 0,
    )


def _table_words(plan: Plan, header: Header) -> int:
    if plan.planner == BALANCED:
        return header.used_words
    heads = plan.work.batch_size * plan.work.num_heads_kv
    least = HEADER_WORDS + (plan.num_aic + plan.num_aiv) * SEGMENT_WORDS * heads
    return _round_up(least, _SECTION_TABLE_STEP)


def _task_index_words(num_aiv: int) -> int:
    return _round_up(2 * num_aiv, SEGMENT_WORDS)


def _round_up(value: int, step: int) -> int:
    return -(-value // step) * step
