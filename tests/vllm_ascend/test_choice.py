"""The platform's own choice of a backend, wrapped."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

MLA = "vllm_ascend.attention.mla_v1.AscendMLABackend"
SFA = "vllm_ascend.attention.sfa_v1.AscendSFABackend"
DSA = "vllm_ascend.attention.dsa_v1.AscendDSABackend"


class _Lines(logging.Handler):
    def __init__(self):
        super().__init__(logging.INFO)
        self.texts = []

    def emit(self, record):
        self.texts.append(record.getMessage())


@pytest.fixture
def lines(vllm_ascend):
    """What is logged; each sentence is logged once per process, so the memory is cleared."""
    from fa_triton.vllm.selection import announce, log

    announce.cache_clear()
    handler = _Lines()
    log.addHandler(handler)
    yield lambda: handler.texts
    log.removeHandler(handler)


@pytest.fixture
def platform(engine_config):
    """The platform with its choice wrapped, undone afterwards; its options are read by now."""
    from vllm.platforms import current_platform

    from fa_triton.vllm.ascend import register_on_ascend

    cls = type(current_platform)
    before = dict(vars(cls))
    register_on_ascend()
    register_on_ascend()
    yield cls
    cls.get_attn_backend_cls = before["get_attn_backend_cls"]
    for name in set(vars(cls)) - set(before):
        delattr(cls, name)


@pytest.fixture
def choose(platform):
    """Ask for the backend of a layer."""
    from vllm.v1.attention.selector import AttentionSelectorConfig

    def choose(*, selected=None, extra=None, **options):
        wanted = {
            "head_size": 64,
            "dtype": torch.bfloat16,
            "kv_cache_dtype": "auto",
            "block_size": 128,
            **options,
        }
        config = AttentionSelectorConfig(**wanted)
        if extra:
            config = SimpleNamespace(**config._asdict(), **extra)
        return platform.get_attn_backend_cls(selected, config, num_heads=4)

    return choose


@pytest.fixture
def ours():
    from fa_triton.vllm.ascend.registration import BACKEND

    return BACKEND


@pytest.fixture
def plain():
    from fa_triton.vllm.ascend.registration import PLAIN_BACKEND

    return PLAIN_BACKEND


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"head_size": 0, "kv_cache_dtype": None, "block_size": None},
        {"head_size": 256, "has_sink": True},
        {"dtype": torch.float16, "block_size": 16},
        {"use_kv_connector": True},
        {"use_non_causal": True},
    ],
    ids=["plain", "probe of the runner", "sinks", "small blocks", "transfers", "drafts"],
)
def test_layers_that_are_served(choose, ours, lines, options):
    assert choose(**options) == ours
    assert lines() == [f"fa_triton: attention is served by {ours}"]


@pytest.mark.parametrize(
    ("options", "chosen", "reason"),
    [
        ({"use_mla": True}, MLA, "multi-head latent attention"),
        ({"use_mla": True, "use_sparse": True}, SFA, "multi-head latent attention"),
        ({"use_mla": True, "extra": {"use_compress": True}}, DSA, "multi-head latent"),
        ({"attn_type": "encoder_only"}, None, "encoder_only"),
        ({"attn_type": "encoder"}, None, "got encoder"),
        ({"attn_type": "encoder_decoder"}, None, "encoder_decoder"),
        ({"kv_cache_dtype": "int8"}, None, "kv_cache_dtype=int8"),
        ({"kv_cache_dtype": "fp8"}, None, "kv_cache_dtype=fp8"),
        ({"kv_cache_dtype": "int8_per_token_head"}, None, "no cache with scales"),
        ({"head_size": 260}, None, "multiple of 8 up to 256, got 260"),
        ({"use_mm_prefix": True}, None, "two-way attention within images"),
        ({"block_size": 24}, None, "multiples of 16"),
    ],
)
def test_layers_that_are_handed_back(choose, plain, lines, options, chosen, reason):
    chosen = chosen or plain
    assert choose(**options) == chosen
    (line,) = lines()
    assert line.startswith(f"fa_triton: attention is handed back to {chosen}: ")
    assert reason in line


def test_later_fields_of_the_selector(choose, plain, lines, version):
    if version < (0, 30):
        pytest.skip("the selector has these fields from 0.30 on")
    assert choose(use_dcp=True) == plain
    assert choose(use_pcp=True) == plain
    assert choose(use_non_causal=True, has_sliding_window=True) == plain
    assert choose(use_adaptive_verification=True) == plain
    reasons = " ".join(lines())
    for part in ("context parallelism", "window without a causal mask", "adaptive drafts"):
        assert part in reasons


def test_other_hardware_keeps_its_backend(choose, lines, version, monkeypatch):
    from vllm_ascend import platform

    if version >= (0, 28):
        family = platform.AttentionBackendFamily.COMPATIBILITY
        profile = SimpleNamespace(attention_backend_family=family)
        monkeypatch.setattr(platform, "get_current_hardware_profile", lambda: profile)
    else:
        monkeypatch.setattr(platform, "is_310p", lambda: True)
    chosen = choose()
    assert chosen == "vllm_ascend._310p.attention.attention_v1.AscendAttentionBackend310"
    assert lines()[-1].endswith("the platform chose it in place of its plain attention")


def test_parallel_ranks_of_the_engine(choose, plain, engine_config, lines, monkeypatch):
    from vllm.config import set_current_vllm_config

    parallel = engine_config.parallel_config
    monkeypatch.setattr(parallel, "decode_context_parallel_size", 2)
    with set_current_vllm_config(engine_config):
        assert choose() == plain
    assert "context parallelism is not served" in lines()[-1]


def test_int8_checkpoints(choose, plain, engine_config, lines, monkeypatch):
    from vllm.config import set_current_vllm_config

    monkeypatch.setattr(engine_config, "quant_config", SimpleNamespace(enable_c8_quant=True))
    with set_current_vllm_config(engine_config):
        assert choose() == plain
    assert "quantised cache (C8)" in lines()[-1]


def test_vllm_resolves_the_choice_to_our_class(platform, engine_config, lines):
    from vllm.config import set_current_vllm_config
    from vllm.v1.attention.selector import get_attn_backend
    from vllm_ascend.attention.attention_v1 import AscendAttentionBackend

    from fa_triton.vllm.ascend.backend import FaTritonAscendBackend

    with set_current_vllm_config(engine_config):
        layer = get_attn_backend(64, torch.bfloat16, "auto")
        probe = get_attn_backend(0, torch.bfloat16, None, use_mla=False, use_sparse=False)
    assert layer is probe is FaTritonAscendBackend
    # what the runner asks before it updates lengths on the device
    assert issubclass(probe, AscendAttentionBackend)
    assert lines() == [f"fa_triton: attention is served by {layer.__module__}.{layer.__name__}"]


def test_switched_on_without_torch_npu(vllm_ascend, monkeypatch):
    """The stand-in has no metadata: the plugin names what is missing."""
    from fa_triton.vllm import register

    monkeypatch.setenv("FA_TRITON_VLLM", "1")
    with pytest.raises(RuntimeError, match="torch_npu"):
        register()


def test_switched_off(vllm_ascend, monkeypatch):
    from vllm.platforms import current_platform

    from fa_triton.vllm import register

    monkeypatch.delenv("FA_TRITON_VLLM", raising=False)
    before = dict(vars(type(current_platform)))
    register()
    assert dict(vars(type(current_platform))) == before
