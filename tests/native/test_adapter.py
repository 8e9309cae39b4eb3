"""triton-adapter-opt dies of freed memory now and then: on the CPU and for Ascend it runs again."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from triton.backends.ascend import compiler as ascend

from fa_triton.compile import front_end as ascend_front_end
from fa_triton.compile.options import launch_options
from fa_triton.native import front_end as native_front_end
from fa_triton.native.errors import LoweringError
from fa_triton.targets import target
from tests.compile.small_kernels import COPY_ROWS_SIGNATURE, copy_rows

CONSTANTS = {"ROWS": 16, "D": 64, "FORM": "plain"}


def for_a2() -> str:
    device = target("A2")
    spec = ascend_front_end.specialise(copy_rows, COPY_ROWS_SIGNATURE, CONSTANTS)
    return ascend_front_end.lower(copy_rows, spec, device, launch_options(device)).linalg


def for_the_cpu() -> str:
    types = {name: COPY_ROWS_SIGNATURE.get(name, "constexpr") for name in copy_rows.arg_names}
    types = {name: kind.partition(":")[0] for name, kind in types.items()}
    spec = native_front_end.Specialization(types, CONSTANTS, ())
    return native_front_end.to_linalg(copy_rows, spec)


@pytest.fixture
def adapter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Put a script in the adapter's place that first does something else; returns its runs."""
    real = ascend._get_triton_adapter_opt_path()
    runs = tmp_path / "runs"
    script = tmp_path / "triton-adapter-opt"

    def misbehave(times: int, how: str):
        script.write_text(
            f"#!/bin/sh\necho run >> {runs}\n"
            f'[ $(wc -l < {runs}) -gt {times} ] || {{ {how}; }}\nexec {real} "$@"\n'
        )
        script.chmod(0o755)
        monkeypatch.setattr(ascend, "_get_triton_adapter_opt_path", lambda: str(script))
        return lambda: len(runs.read_text().splitlines())

    return misbehave


@pytest.mark.parametrize("lower", [for_a2, for_the_cpu])
@pytest.mark.parametrize("name", ["SEGV", "ABRT"])
def test_a_killed_run_is_made_again(adapter, lower, name):
    expected = lower()
    runs = adapter(2, f"kill -{name} $$")
    assert lower() == expected
    assert runs() == 3


@pytest.mark.parametrize("lower", [for_a2, for_the_cpu])
def test_one_that_dies_every_time_is_an_error(adapter, lower):
    runs = adapter(1000, "echo PLEASE submit a bug report >&2; kill -SEGV $$")
    with pytest.raises(LoweringError, match="triton-adapter-opt: PLEASE submit") as caught:
        lower()
    assert "tt.func" in caught.value.ir
    assert runs() > 2
    assert caught.value.__cause__.returncode == -signal.SIGSEGV


@pytest.mark.parametrize("lower", [for_a2, for_the_cpu])
def test_a_refusal_stands(adapter, lower):
    runs = adapter(1000, "echo 'k.mlir:3: error: no such op' >&2; exit 1")
    with pytest.raises(LoweringError, match="error: no such op"):
        lower()
    assert runs() == 1
