"""Results as text, and as a CSV file that grows while cases run."""

from __future__ import annotations

import csv
from pathlib import Path
from types import TracebackType

from typing_extensions import Self

from fa_triton.cases.result import CaseResult

COLUMNS: tuple[str, ...] = (
    "id",
    "group",
    "case",
    "path",
    "verdict",
    "gflop",
    "rms",
    "rms_budget",
    "max_error",
    "max_budget",
    "vendor_fail_ratio",
    "emulation_fail_ratio",
    "vendor_budget",
    "lse_error",
    "lse_budget",
    "seconds",
    "detail",
)
_MISSING = ""


def row(result: CaseResult) -> dict[str, str]:
    """One result as text, by column; empty where there is nothing to say."""
    case, judged = result.case, result.judgement
    cells = dict.fromkeys(COLUMNS, _MISSING)
    cells |= {
        "id": case.id,
        "group": case.group,
        "case": str(case),
        "path": result.path,
        "verdict": "pass" if result.passed else "fail",
        "seconds": f"{result.seconds:.2f}",
        "detail": result.detail,
    }
    if result.gflop is not None:
        cells["gflop"] = f"{result.gflop:.4g}"
    if judged is not None:
        cells |= {
            "rms": f"{judged.error.rms:.3e}",
            "rms_budget": f"{judged.limits.rms:.3e}",
            "max_error": f"{judged.error.largest:.3e}",
            "max_budget": f"{judged.limits.largest:.3e}",
            "vendor_fail_ratio": f"{judged.error.vendor_fail_ratio:.3%}",
            "emulation_fail_ratio": f"{judged.emulation.vendor_fail_ratio:.3%}",
            "vendor_budget": f"{judged.limits.vendor_fail_ratio:.3%}",
        }
        if judged.lse_error is not None and judged.lse_limit is not None:
            cells["lse_error"] = f"{judged.lse_error:.3e}"
            cells["lse_budget"] = f"{judged.lse_limit:.3e}"
    return cells


class CsvReport:
    """A CSV file that holds every result so far, also when the run ends early."""

    def __init__(self, path: Path) -> None:
        """Open the file and write the column names."""
        self._file = path.open("w", newline="", encoding="utf-8")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._writer.writeheader()
        self._file.flush()

    def __enter__(self) -> Self:
        """Return itself; leaving closes the file."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Close the file."""
        self._file.close()

    def add(self, result: CaseResult) -> None:
        """Append one result and hand it to the system."""
        self._writer.writerow(row(result))
        self._file.flush()
