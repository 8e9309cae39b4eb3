"""Results as tables of the README: ratios, shares, where they come from."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

Result = dict[str, Any]


def read_results(path: Path) -> list[Result]:
    """Read a JSONL file."""
    return [json.loads(line) for line in path.read_text().splitlines() if line]


def of_kind(results: Iterable[Result], kind: str) -> list[Result]:
    """Return the lines of one kind."""
    return [r for r in results if r["kind"] == kind]


def peer_has_amx(result: Result) -> bool:
    """Tell whether the peer was free to use the matrix unit."""
    return result["peer_amx"]


def table(results: list[Result]) -> str:
    """Return the README's performance section: ratios, first calls, where they come from."""
    timings = of_kind(results, "timing")
    many = max(r["threads"] for r in timings)
    amx = any(map(peer_has_amx, timings))
    rows: dict[tuple[str, str], dict[str, Result]] = {}
    for r in timings:
        column = "many" if r["threads"] == many > 1 else "one"
        if amx and r["dtype"] == "bf16" and not peer_has_amx(r):
            column = "no_amx"
        rows.setdefault((r["workload"], r["dtype"]), {})[column] = r
    columns = {"one": "1 thread, CPU time", "many": f"{many} threads, elapsed"}
    if amx:
        columns["no_amx"] = "1 thread, torch without AMX"
    lines = [
        f"| workload | dtype | {' | '.join(columns.values())} | fastest peer |",
        "|---" * (len(columns) + 3) + "|",
    ]
    for (workload, dtype), found in rows.items():
        cells = [f"{found[c]['ratio']:.2f}" if c in found else "" for c in columns]
        peer = next(iter(found.values()))["peer"]
        lines.append(f"| {workload} | {dtype} | {' | '.join(cells)} | {peer} |")
    first = of_kind(results, "first_call")
    if first:
        lines += [
            "",
            "| first call of a process | empty cache, s | filled cache, s |",
            "|---|---|---|",
        ]
        lines += [
            f"| {r['workload']} {r['dtype']} | {r['cold']['first_s']:.2f}"
            f" | {r['warm']['first_s']:.2f} |"
            for r in first
        ]
    return "\n".join([*lines, "", _provenance(results[0])])


def kda_table(results: list[Result]) -> str:
    """Return the README's section of linear attention: ratios, shares of the phases, origin."""
    lines = [
        "| gate | dtype | 1 thread, CPU time | goal | fastest peer | share of the phases |",
        "|---|---|---|---|---|---|",
    ]
    for r in of_kind(results, "timing"):
        total = sum(r["phases_ms"].values())
        shares = ", ".join(
            f"{name} {100 * ms / total:.0f} %" for name, ms in r["phases_ms"].items()
        )
        lines.append(
            f"| {r['workload']} | {r['dtype']} | {r['ratio']:.2f} | {r['goal']:.2f} | {r['peer']} "
            f"| {shares} |"
        )
    return "\n".join([*lines, "", _provenance(results[0])])


def decode_table(results: list[Result]) -> str:
    """Return the README's section of decode: ratios by cache and place, bytes, origin."""
    timings = of_kind(results, "timing")
    bytes_moved = {
        (r["cache"], r["workload"]): r["over_compulsory"]
        for r in of_kind(results, "bytes")
        if r["target"] == "A2"
    }
    lines = [
        "| cache | step | 1 thread, CPU time | goal | fastest peer | bytes over compulsory, A2 |",
        "|---|---|---|---|---|---|",
    ]
    lines += [
        f"| {r['cache']} | {r['workload']} | {r['ratio']:.2f} | {r['goal']:.2f} | {r['peer']} "
        f"| {bytes_moved[r['cache'], r['workload']]:.2f} |"
        for r in timings
    ]
    return "\n".join([*lines, "", _provenance(results[0])])


def _provenance(result: Result) -> str:
    packages = ", ".join(f"{k} {v}" for k, v in result["toolchain"].items() if v)
    return (
        f"Measured {result['date']} by `{result['command']}` at commit {result['commit']} on "
        f"{result['device']}; {packages}."
    )
