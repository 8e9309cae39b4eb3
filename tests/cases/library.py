"""CANN's public cases as the tests use them, and which of them a test run computes."""

from __future__ import annotations

from pathlib import Path

from fa_triton.cases.case import AttentionCase, RuleCase
from fa_triton.cases.files import read_cases
from fa_triton.cases.incre_case import IncreCase

DATA = Path(__file__).parent / "data"
FILE = DATA / "flash_attn_cases.json"
CASES = read_cases(FILE)
ATTENTION = [case for case in CASES if isinstance(case, AttentionCase)]
RULES = [case for case in CASES if isinstance(case, RuleCase)]
INCRE_FILE = DATA / "incre_flash_attention_cases.json"
INCRE = [case for case in read_cases(INCRE_FILE) if isinstance(case, IncreCase)]
