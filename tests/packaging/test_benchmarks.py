"""The benchmark frame: peers compute the same thing, wrong results are not timed, the table."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from perf import overhead
from perf.candidates import peers
from perf.decode_bytes import CORES, step_bytes
from perf.decode_peers import on_record
from perf.decode_peers import peers as decode_peers
from perf.decode_workloads import DecodeWorkload, make_inputs
from perf.decode_workloads import check as check_decode
from perf.gate import check
from perf.plot import BEGIN, END, fill_readme
from perf.shapes import DTYPES, WORKLOADS, make_tensors
from perf.tables import decode_table, kda_table, table
from perf.timing import compare, torch_threads


def small(name):
    """Return a workload with the structure of a named one and short sequences."""
    workload = WORKLOADS[name]
    return replace(
        workload,
        q_lens=tuple(max(1, n // 16) for n in workload.q_lens),
        kv_lens=tuple(n // 16 for n in workload.kv_lens),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", WORKLOADS)
def test_every_peer_computes_the_workload(name, dtype):
    workload = small(name)
    tensors = make_tensors(workload, DTYPES[dtype])
    for call in peers(workload, tensors).values():
        assert check(workload, tensors, call()).passed


def test_a_wrong_result_does_not_pass():
    workload = small("prefill")
    tensors = make_tensors(workload, torch.bfloat16)
    (call,) = peers(workload, tensors).values()
    wrong = call().clone()
    wrong[0, 0, 0] += 0.1
    assert not check(workload, tensors, wrong).passed


@pytest.mark.forked
def test_every_call_whose_overhead_is_timed_runs():
    calls = overhead.candidates()
    assert overhead.VALIDATED_ANEW in calls
    for call in calls.values():
        call()


def test_flops_count_visible_pairs_only():
    workload = replace(small("prefill"), q_lens=(3,), kv_lens=(3,))
    pairs = 1 + 2 + 3
    assert workload.flops == 4 * pairs * workload.num_heads_q * workload.head_dim


def test_candidates_are_called_in_turns():
    order = []
    calls = {"a": lambda: order.append("a"), "b": lambda: order.append("b")}
    timings = compare(calls, rounds=2, warm_up=1)
    assert order == ["a", "b", "a", "b", "a", "b"]
    assert set(timings) == {"a", "b"}


def test_thread_count_is_restored():
    before = torch.get_num_threads()
    with torch_threads(before + 1):
        assert torch.get_num_threads() == before + 1
    assert torch.get_num_threads() == before


def result(**changes):
    """Return one line of results."""
    line = {
        "kind": "timing",
        "workload": "prefill",
        "dtype": "bf16",
        "threads": 1,
        "peer": "sdpa",
        "peer_amx": True,
        "ratio": 0.8,
        "toolchain": {"torch": "2.13.0", "numpy": None},
        "date": "2026-01-01",
        "command": "python -m perf.run cpu",
        "commit": "abc",
        "device": "a processor",
    }
    return line | changes


def test_table_tells_ratios_with_and_without_amx():
    text = table([result(), result(threads=2, ratio=0.7), result(peer_amx=False, ratio=0.6)])
    assert "| prefill | bf16 | 0.80 | 0.70 | 0.60 | sdpa |" in text
    assert "torch 2.13.0." in text


def test_table_without_amx_has_no_such_column():
    text = table([result(peer_amx=False), result(peer_amx=False, threads=2, ratio=0.7)])
    assert "| prefill | bf16 | 0.80 | 0.70 | sdpa |" in text
    assert "AMX" not in text


def test_readme_keeps_all_but_the_table(tmp_path):
    page = tmp_path / "README.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    fill_readme("new", page)
    assert page.read_text() == f"before\n{BEGIN}\nnew\n{END}\nafter\n"


def test_table_of_linear_attention_tells_shares():
    line = result(
        workload="bounded", goal=0.75, peer="torch fp32", phases_ms={"gate": 1, "FwdH": 3}
    )
    text = kda_table([line])
    assert "| bounded | bf16 | 0.80 | 0.75 | torch fp32 | gate 25 %, FwdH 75 % |" in text
    assert "at commit abc on a processor" in text


def test_table_of_decode_tells_bytes():
    line = result(cache="int8", workload="B 1, S 1024, paged", goal=0.6)
    counted = result(kind="bytes", target="A2", over_compulsory=1.234, **{
        name: line[name] for name in ("cache", "workload")
    })  # fmt: skip
    text = decode_table([line, counted])
    assert "| int8 | B 1, S 1024, paged | 0.80 | 0.60 | sdpa | 1.23 |" in text


@pytest.mark.parametrize("device", CORES)
def test_bytes_of_a_step_that_cuts_nothing(device):
    """As many sequences and heads as cores: the cache, rows and scales once, and the plan."""
    heads = CORES[device][0]
    workload = DecodeWorkload("int8", 1, 1024, is_paged=False, num_heads_kv=heads)
    counted = step_bytes(workload, device)
    assert counted.keys == heads * 1024 * 2 * 128
    assert counted.rows == 2 * heads * 8 * 128 * 2
    assert counted.scales == heads * 2 * 128 * 4
    assert counted.partials == 0
    assert counted.compulsory == counted.keys + counted.rows + counted.scales


def test_bytes_of_a_step_whose_rows_are_cut():
    """Every key is still read once; partial rows are written and read once."""
    workload = DecodeWorkload("bf16", 1, 8192, is_paged=True)
    counted = step_bytes(workload, "A2")
    assert counted.keys == 2 * 8192 * 2 * 128 * 2
    slots, rest = divmod(counted.partials, 2 * 8 * 130 * 4)
    assert slots >= 2
    # tasks that share a row read its maximum and sum again
    assert rest % (8 * 4) == 0


@pytest.mark.parametrize("cache", ["bf16", "int8"])
def test_peers_of_decode_agree(cache):
    inputs = make_inputs(DecodeWorkload(cache, 2, 256, is_paged=True))
    calls = {**decode_peers(inputs), **on_record(inputs)}
    gathered = calls.pop("gather of pages")()
    assert torch.equal(gathered, inputs.v)
    for call in calls.values():
        assert check_decode(inputs, call()).ratio < 3


def test_readme_without_markers_is_refused(tmp_path):
    page = tmp_path / "README.md"
    page.write_text("nothing\n")
    with pytest.raises(ValueError, match="must hold the markers"):
        fill_readme("new", page)
