"""Kimi-Linear in the engine: prefill, chunks and decode of its KDA layers against float64."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.vllm
pytest.importorskip("vllm")

from fa_triton.vllm.settings import SWITCH_VARIABLE  # noqa: E402
from tests.vllm.engine import ENVIRONMENT, TIMEOUT_S  # noqa: E402

PROGRAM = Path(__file__).with_name("kimi_linear.py")
LAYERS = 2
PROMPT_LENGTHS = (150, 20, 64, 97, 7)
MAX_TOKENS = 12
# The budget of the operator's own tests: RMS error over that of an emulation of what is rounded.
FACTOR = 1.1
MODEL = {
    "architectures": ["KimiLinearForCausalLM"],
    "model_type": "kimi_linear",
    "vocab_size": 512,
    "hidden_size": 128,
    "head_dim": 32,
    "intermediate_size": 256,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 4,
    "num_key_value_heads": 4,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "num_experts": None,
    "first_k_dense_replace": LAYERS,
    "tie_word_embeddings": False,
    "max_position_embeddings": 2048,
    "dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
# vLLM's CPU attention for the other layers of Kimi-Linear forbids chunked prefill: none here.
KDA_LAYERS = {
    "kda_layers": [1, 2],
    "full_attn_layers": [],
    "num_heads": 2,
    "head_dim": 64,
    "short_conv_kernel_size": 4,
}


def serve(folder: Path, *, lower_bound: float | None = None, loses_states: bool = False) -> dict:
    """Generate in a process of its own."""
    model = folder / "model"
    model.mkdir(parents=True)
    options = {} if lower_bound is None else {"gate_lower_bound": lower_bound}
    config = MODEL | {"linear_attn_config": KDA_LAYERS | options}
    (model / "config.json").write_text(json.dumps(config))
    generator = random.Random(0)
    asked = {
        "engine": {
            "model": str(model),
            "skip_tokenizer_init": True,
            "load_format": "dummy",
            "dtype": "bfloat16",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_batched_tokens": 64,
            "max_num_seqs": 4,
            "enable_chunked_prefill": True,
            "enable_prefix_caching": False,
            "disable_log_stats": True,
        },
        "prompts": [
            {"prompt_token_ids": [generator.randrange(3, 512) for _ in range(length)]}
            for length in PROMPT_LENGTHS
        ],
        "max_tokens": MAX_TOKENS,
        "loses_states": loses_states,
    }
    files = folder / "asked.json", folder / "result.json"
    files[0].write_text(json.dumps(asked))
    environment = os.environ | ENVIRONMENT | {
        SWITCH_VARIABLE: "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        # a product of matrices for CUDA, which the model asks for unless told not to
        "VLLM_KIMI_K3_GEMM_AR": "0",
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, str(PROGRAM), *map(str, files)],
        env=environment, capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    if done.returncode:
        raise RuntimeError(f"ended with {done.returncode}:\n{(done.stdout + done.stderr)[-6000:]}")
    return json.loads(files[1].read_text())


@pytest.mark.parametrize("lower_bound", [None, -5.0], ids=["softplus gate", "bounded gate"])
def test_every_request_equals_the_recurrence(tmp_path, lower_bound):
    result = serve(tmp_path, lower_bound=lower_bound)
    requests = result["requests"]
    assert result["layers"] == LAYERS
    # the last token that is generated is not fed again
    lengths = sorted(length + MAX_TOKENS - 1 for length in PROMPT_LENGTHS)
    assert sorted(one["tokens"] for one in requests) == sorted(lengths * LAYERS)
    ratios = [one["error"] / one["yardstick"] for one in requests]
    assert max(ratios) < FACTOR, ratios
    steps = [step for one in requests for step in one["steps"]]
    assert steps.count("first") == LAYERS * len(PROMPT_LENGTHS)
    # parts of prompts and, in steps with a prompt, tokens that continue from a state
    assert steps.count("chunk") > 2 * LAYERS
    assert steps.count("token") > LAYERS * len(PROMPT_LENGTHS)
    assert all(len(tokens) == MAX_TOKENS for tokens in result["tokens"])
    assert len({token for tokens in result["tokens"] for token in tokens}) > MAX_TOKENS


def test_lost_states_show(tmp_path):
    result = serve(tmp_path, loses_states=True)
    continued = [one for one in result["requests"] if "chunk" in one["steps"]]
    assert continued
    assert all(one["error"] > 10 * one["yardstick"] for one in continued)
