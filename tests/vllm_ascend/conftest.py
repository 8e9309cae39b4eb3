"""Tests of the Ascend adapter against vllm-ascend itself; ``make vllm-ascend-test``.

vLLM and vllm-ascend are the real packages, torch_npu is a stand-in (``doubles/``) that refuses
every call: classes, signatures and choices are vllm-ascend's own, and layers run on tensors of the
CPU.
"""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import sys
from pathlib import Path
from types import ModuleType

import pytest

DOUBLES = Path(__file__).parent / "doubles"
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 512,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 1,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 2048,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "hidden_act": "silu",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Importing vllm-ascend alone takes half a minute."""
    for item in items:
        if Path(__file__).parent in item.path.parents and "vllm_ascend" in item.fixturenames:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.vllm)


@pytest.fixture(scope="session")
def vllm_ascend() -> ModuleType:
    """The package, imported on the stand-in for torch_npu."""
    if importlib.util.find_spec("vllm_ascend") is None:
        pytest.skip("vllm-ascend is not installed: make vllm-ascend-test")
    os.environ["VLLM_PLUGINS"] = "ascend"
    # vLLM inspects models in processes of their own
    inherited = os.environ.get("PYTHONPATH", "")
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(DOUBLES), inherited)))
    sys.path.insert(0, str(DOUBLES))
    import torch_npu  # noqa: F401
    import vllm_ascend

    # in this order, since vllm-ascend's attention and operators import each other
    import vllm_ascend.ops
    from vllm.platforms import current_platform

    assert current_platform.device_type == "npu"
    return vllm_ascend


@pytest.fixture(scope="session")
def version(vllm_ascend: ModuleType) -> tuple[int, int]:
    """Major and minor number of vllm-ascend, which are those of vLLM."""
    import vllm

    numbers = importlib.metadata.version("vllm-ascend").split(".")[:2]
    assert vllm.__version__.split(".")[:2] == numbers
    return int(numbers[0]), int(numbers[1])


@pytest.fixture(scope="session")
def engine_config(vllm_ascend: ModuleType, tmp_path_factory: pytest.TempPathFactory):
    """Configuration of an engine for a tiny Llama, made by the NPU platform's own rules."""
    from vllm.engine.arg_utils import EngineArgs

    folder = tmp_path_factory.mktemp("llama")
    (folder / "config.json").write_text(json.dumps(LLAMA))
    arguments = EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        dtype="bfloat16",
        enforce_eager=True,
        max_model_len=1024,
        load_format="dummy",
    )
    return arguments.create_engine_config()
