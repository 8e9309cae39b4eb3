"""SmolLM2-135M-Instruct answers sixteen prompts at once, in Python and over HTTP."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from fa_triton.demo.model import model_copy
from fa_triton.demo.packages import weights_file
from fa_triton.vllm.prompts import PROMPTS
from fa_triton.vllm.settings import RECORD_VARIABLE, SWITCH_VARIABLE
from tests.vllm.engine import ENVIRONMENT, serve

pytestmark = pytest.mark.vllm

MAX_TOKENS = 24
LAYERS = 30
START_S = 600


@pytest.fixture(scope="module")
def model() -> Path:
    return model_copy(weights_file())


@pytest.fixture(scope="module")
def theirs(model, tmp_path_factory):
    return serve([text_spec(model)], tmp_path_factory.mktemp("theirs"), ours=False)


def text_spec(model, **engine):
    return {
        "engine": {
            "model": str(model),
            "dtype": "float32",
            "enforce_eager": True,
            "max_model_len": 512,
            "max_num_seqs": 16,
            "seed": 0,
            "disable_log_stats": True,
            **engine,
        },
        "rounds": [list(PROMPTS)],
        "max_tokens": MAX_TOKENS,
        "has_text": True,
        "hides_a_key": False,
    }


def test_generate(model, theirs, tmp_path):
    served = serve([text_spec(model)], tmp_path, ours=True)
    assert served.results[0]["rounds"][0]["texts"] == theirs.results[0]["rounds"][0]["texts"]
    assert served.forwards() == LAYERS * len(served.batches())
    assert max(len(one["q"]) for one in served.batches()) == len(PROMPTS)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def server(model, tmp_path):
    """Address of ``vllm serve``, which ends with the test."""
    port = free_port()
    log = (tmp_path / "server.log").open("w")
    arguments = ["serve", str(model), "--host", "127.0.0.1", "--port", str(port)]
    arguments += ["--dtype", "float32", "--enforce-eager", "--max-model-len", "512"]
    arguments += ["--max-num-seqs", "16", "--served-model-name", "smollm2"]
    env = os.environ | ENVIRONMENT
    env |= {SWITCH_VARIABLE: "1", RECORD_VARIABLE: str(tmp_path / "record.jsonl")}
    command = [sys.executable, "-m", "vllm.entrypoints.cli.main", *arguments]
    process = subprocess.Popen(command, env=env, stdout=log, stderr=subprocess.STDOUT)
    address = f"http://127.0.0.1:{port}"
    try:
        wait_for(f"{address}/health", process, tmp_path / "server.log")
        yield address
    finally:
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
        log.close()


def wait_for(url, process, log):
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise RuntimeError(f"the server ended: {log.read_text()[-4000:]}")
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                if answer.status == 200:
                    return
        except OSError:
            time.sleep(1)
    raise TimeoutError(f"no server after {START_S} s: {log.read_text()[-4000:]}")


def test_streaming_server(server, theirs, tmp_path):
    from openai import OpenAI

    client = OpenAI(base_url=f"{server}/v1", api_key="none", timeout=600)

    def ask(prompt):
        stream = client.completions.create(
            model="smollm2",
            prompt=prompt,
            temperature=0,
            max_tokens=MAX_TOKENS,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        return [choice.text for chunk in stream for choice in chunk.choices]

    with ThreadPoolExecutor(len(PROMPTS)) as pool:
        pieces = list(pool.map(ask, PROMPTS))
    assert ["".join(one) for one in pieces] == theirs.results[0]["rounds"][0]["texts"]
    assert min(map(len, pieces)) > 1
    assert '"kind": "batch"' in (tmp_path / "record.jsonl").read_text()
