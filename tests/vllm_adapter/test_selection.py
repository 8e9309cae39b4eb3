"""The wrapped choice of a platform and the registration, with stand-ins for vLLM's modules."""

from __future__ import annotations

import enum
import logging
import sys
from types import ModuleType, SimpleNamespace
from typing import ClassVar, NamedTuple

import pytest
import torch

import fa_triton.vllm
from fa_triton.vllm import plugin, selection, settings
from fa_triton.vllm.versions import Installed

OWN = "platform.own.Backend"


class Config(NamedTuple):
    """Some fields of vLLM's selector configuration; versions differ in the others."""

    head_size: int = 64
    dtype: torch.dtype = torch.float32
    kv_cache_dtype: str | None = "auto"
    block_size: int | None = None
    use_mla: bool = False
    attn_type: str = "decoder"


class Choice(enum.Enum):
    CUSTOM = "custom"
    TRITON_ATTN = "triton"


def new_platform(device_type="cpu", is_rocm=False):
    class Platform:
        calls: ClassVar[list] = []

        @classmethod
        def get_attn_backend_cls(cls, selected_backend, attn_selector_config, num_heads=None):
            cls.calls.append((selected_backend, attn_selector_config, num_heads))
            return OWN

    Platform.device_type = device_type
    Platform.is_rocm = classmethod(lambda cls: is_rocm)
    Platform.calls = []
    return Platform


@pytest.fixture
def log(caplog):
    selection.announce.cache_clear()
    caplog.set_level(logging.INFO, logger="vllm.fa_triton")
    return caplog


@pytest.fixture
def engine(monkeypatch):
    """Stand-ins for the modules of vLLM that the registration imports."""
    registered = {}
    custom = SimpleNamespace(
        is_overridden=lambda: "CUSTOM" in registered, get_path=lambda: registered["CUSTOM"]
    )
    registry = ModuleType("vllm.v1.attention.backends.registry")
    registry.AttentionBackendEnum = SimpleNamespace(CUSTOM=custom)
    registry.register_backend = lambda member, path: registered.update(CUSTOM=path)
    platforms = ModuleType("vllm.platforms")
    for name in ("vllm", "vllm.v1", "vllm.v1.attention", "vllm.v1.attention.backends"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    monkeypatch.setitem(sys.modules, registry.__name__, registry)
    monkeypatch.setitem(sys.modules, platforms.__name__, platforms)
    monkeypatch.setattr(plugin, "bind_kda", lambda: registered.update(kda=True))

    def start(platform, installed=None, switch="1"):
        platforms.current_platform = platform()
        monkeypatch.setenv(settings.SWITCH_VARIABLE, switch)
        found = installed or Installed("0.32.0", (), ("ascend",))
        monkeypatch.setattr("fa_triton.vllm.versions.look", lambda _: found)
        fa_triton.vllm.register()
        return registered

    return start


def test_served_layers_get_our_backend(log):
    platform = new_platform()
    selection.wrap_platform(platform, "ours.Backend")
    for _ in range(3):
        assert platform.get_attn_backend_cls(None, Config()) == "ours.Backend"
    assert platform.get_attn_backend_cls(Choice.CUSTOM, Config()) == "ours.Backend"
    assert platform.calls == []
    assert log.text.count("attention is served by ours.Backend") == 1


@pytest.mark.parametrize(
    ("selected", "config", "reason"),
    [
        (None, Config(head_size=512), "head size must be a multiple of 8 up to 256, got 512"),
        (None, Config(use_mla=True), "multi-head latent attention is not served"),
        (None, Config(attn_type="encoder_only"), "only attention of decoders is served"),
        (None, Config(kv_cache_dtype="fp8"), "kv_cache_dtype=fp8"),
        (Choice.TRITON_ATTN, Config(), "the engine was asked for the backend TRITON_ATTN"),
    ],
)
def test_others_go_back_with_one_line_of_log(log, selected, config, reason):
    platform = new_platform()
    selection.wrap_platform(platform, "ours.Backend")
    for _ in range(3):
        assert platform.get_attn_backend_cls(selected, config, num_heads=4) == OWN
    assert platform.calls == [(selected, config, 4)] * 3
    assert log.text.count(f"attention is handed back to {OWN}") == 1
    assert reason in log.text


def test_a_platform_is_wrapped_once():
    platform = new_platform()
    selection.wrap_platform(platform, "ours.Backend")
    once = platform.get_attn_backend_cls.__func__
    selection.wrap_platform(platform, "ours.Backend")
    assert platform.get_attn_backend_cls.__func__ is once


def test_switched_on(engine):
    platform = new_platform()
    registered = engine(platform)
    assert registered == {"CUSTOM": plugin.BACKEND, "kda": True}
    assert platform.get_attn_backend_cls(None, Config()) == plugin.BACKEND
    engine(platform)
    assert platform.get_attn_backend_cls(None, Config()) == plugin.BACKEND


def test_nothing_happens_unless_switched_on(engine):
    platform = new_platform()
    assert engine(platform, switch="0") == {}
    assert platform.get_attn_backend_cls(None, Config()) == OWN


def test_cuda_offers_the_engine_option(engine):
    platform = new_platform("cuda")
    stock = Installed("0.32.0", (), ("amd", "nvidia"))
    assert engine(platform, stock, switch="0") == {"CUSTOM": plugin.BACKEND}
    assert platform.get_attn_backend_cls(None, Config()) == OWN


def test_cuda_without_triton_offers_nothing(engine, log):
    without = Installed("0.32.0", ("triton",), None)
    assert engine(new_platform("cuda"), without, switch="0") == {}
    assert "`triton` must be installed" in log.text


def test_custom_of_others_is_an_error_if_both_are_asked_for(engine):
    platform = new_platform()
    engine(platform, switch="0")["CUSTOM"] = "someone.Backend"
    with pytest.raises(RuntimeError, match=r"got someone\.Backend; unset FA_TRITON_VLLM"):
        engine(platform)
    assert platform.get_attn_backend_cls(None, Config()) == OWN


def test_custom_of_others_is_left_alone(engine, log):
    registered = engine(new_platform("cuda"), Installed("0.32.0", (), ("nvidia",)))
    registered["CUSTOM"] = "someone.Backend"
    engine(new_platform("cuda"), Installed("0.32.0", (), ("nvidia",)), switch="0")
    assert registered["CUSTOM"] == "someone.Backend"
    assert "--attention-backend CUSTOM stays with someone.Backend" in log.text


@pytest.mark.parametrize("platform", [new_platform("xpu"), new_platform("cuda", is_rocm=True)])
def test_other_platforms_are_told(engine, log, platform):
    assert engine(platform) == {}
    assert "nothing is changed" in log.text
    assert platform.get_attn_backend_cls(None, Config()) == OWN


def test_environment_that_cannot_serve_is_an_error(engine):
    stock = Installed("0.32.0", (), ("amd", "nvidia"))
    with pytest.raises(RuntimeError, match="got stock triton"):
        engine(new_platform(), stock)
    with pytest.raises(RuntimeError, match=r"0\.30 or newer on cpu, got 0\.29"):
        engine(new_platform(), Installed("0.29.0", (), ("ascend",)))


def test_untried_version_is_told(engine, log):
    engine(new_platform(), Installed("0.40.1", (), ("ascend",)))
    assert "vLLM 0.40 is newer than what fa_triton was tried with" in log.text
