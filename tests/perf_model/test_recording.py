"""Calls whose launches are taken down as on an Ascend device."""

from __future__ import annotations

import pytest
import torch

from fa_triton import chunk_kda, incre_flash_attention
from fa_triton.kernel_form import parse_key
from fa_triton.launch import Runner
from fa_triton.targets import target
from fa_triton.tile_config import TileKey, choose_tile
from perf.model.recording import recorded

KEYS = 512


def attend():
    q = torch.zeros(1, 8, 1, 128, dtype=torch.bfloat16)
    kv = torch.zeros(1, 1, KEYS, 128, dtype=torch.bfloat16)
    return incre_flash_attention(
        q,
        kv,
        kv,
        num_heads=8,
        num_key_value_heads=1,
        input_layout="BNSD",
        actual_seq_lengths=[KEYS],
    )


@pytest.mark.parametrize("name", ["A2", "A5"])
def test_a_call_chooses_the_tiles_of_the_device(name):
    with recorded(target(name)) as launches:
        attend()
    (forward,) = launches
    tile = choose_tile(TileKey(name, 128, "16bit", "none", 8))
    constants = dict(parse_key(forward.key).constants)
    assert (constants["BLOCK_Q"], constants["BLOCK_KV"]) == (tile.block_q, tile.block_kv)
    assert (forward.kernel, forward.programs) == ("attn_forward", 1)


def test_the_launch_has_the_values_of_its_integer_tensors_and_its_scalars():
    with recorded(target("A2")) as launches:
        attend()
    names = ("q", "seqused_kv", "seqlen_kv", "softmax_scale")
    launch = launches[0].launch(names)
    assert launch.contents == {"seqused_kv": [KEYS]}
    assert launch.scalars == {"seqlen_kv": KEYS, "softmax_scale": 1.0}
    replaced = launches[0].launch(names, seqused_kv=torch.tensor([7], dtype=torch.int32))
    assert replaced.contents == {"seqused_kv": [7]}


def test_programs_follow_the_cores():
    rows = [torch.zeros(1, 256, 2, 64, dtype=torch.bfloat16) for _ in range(3)]
    gate, beta = torch.zeros(1, 256, 2, 64), torch.zeros(1, 256, 2)
    with recorded(target("A2"), cube_cores=3) as launches:
        chunk_kda(*rows, gate, beta, use_gate_in_kernel=True, A_log=torch.zeros(2))
    programs = {launch.kernel: launch.programs for launch in launches}
    assert programs["kda_gate"] == 6
    assert programs["kda_prepare_scores"] == 3


def test_afterwards_calls_run_again_on_the_cpu(monkeypatch):
    def fail_inside():
        with recorded(target("A2")):
            attend()
            raise RuntimeError("inside")

    with pytest.raises(RuntimeError, match="inside"):
        fail_inside()
    seen = []
    monkeypatch.setattr(Runner, "_launch", lambda *args, variant="", **kw: seen.append(variant))
    attend()
    tile = choose_tile(TileKey("cpu", 128, "16bit", "none", 8))
    assert dict(parse_key(seen[0]).constants)["BLOCK_KV"] == tile.block_kv
