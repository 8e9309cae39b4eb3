"""What a block, a partial row and a combine task cost: every assumption of the planners.

Costs are counted in units; one unit is 22 cycles of a cube core with its vector cores. None of
the numbers is measured on hardware: they come from the published planner and from bandwidth
arithmetic, and they are the only place to change when measurements exist.

A partial row is counted at the rows it really has (8 rows of a decode step in a tile of 64 write
8 rows): the padding of a tile is never stored.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np

CYCLES_PER_UNIT = 22

# one block of m rows x s keys costs 6*ceil(m/16) + 10*ceil(s/64) units
ROW_STEP, ROW_STEP_UNITS = 16, 6
KEY_STEP, KEY_STEP_UNITS = 64, 10

# partial rows are fp32 and travel through global memory
PARTIAL_BYTES = 4
BYTES_PER_CYCLE = 109

# between the attention phase and the combine phase
BARRIER_CYCLES = 1000

# section_stream_k: two barriers per section, combine tiles of 8 rows
SECTION_BARRIERS = 2
SECTION_TASK_ROWS = 8

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)


def row_units(rows: IntOrArray) -> IntOrArray:
    """Units that a block takes for its rows."""
    return ROW_STEP_UNITS * -(-rows // ROW_STEP)


def key_units(keys: IntOrArray) -> IntOrArray:
    """Units that a block takes for its keys."""
    return KEY_STEP_UNITS * -(-keys // KEY_STEP)


def block_units(rows: IntOrArray, keys: IntOrArray | int) -> IntOrArray:
    """Units of one block of ``rows`` x ``keys``."""
    return row_units(rows) + key_units(keys)


def missing_units(block_keys: int, missing: IntOrArray) -> IntOrArray:
    """Units that a block of ``block_keys`` saves where so many of them are missing."""
    return KEY_STEP_UNITS * ((missing + -block_keys % KEY_STEP) // KEY_STEP)


def partial_cycles(rows: IntOrArray, columns: int) -> IntOrArray:
    """Cycles to write or read ``rows`` x ``columns`` of partial output once."""
    return -(-rows * (columns * PARTIAL_BYTES) // BYTES_PER_CYCLE)
