"""Functions of modules are replaced, whenever the modules are imported."""

from __future__ import annotations

import importlib
import inspect
import logging
import sys

import pytest
import torch

from fa_triton.vllm.kda import modules, rebinding
from fa_triton.vllm.selection import announce

KERNELS = '''
def double(x):
    """Twice."""
    return 2 * x

def keep(x):
    return x
'''


@pytest.fixture
def package(tmp_path, monkeypatch):
    """A package whose module ``user`` takes functions from ``kernels`` under its own name."""
    folder = tmp_path / "engine_of_tests"
    folder.mkdir()
    (folder / "__init__.py").write_text("")
    (folder / "kernels.py").write_text(KERNELS)
    (folder / "user.py").write_text("from engine_of_tests.kernels import double as twice, keep\n")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    yield "engine_of_tests"
    for name in [name for name in sys.modules if name.startswith("engine_of_tests")]:
        del sys.modules[name]


@pytest.fixture(autouse=True)
def _fresh_watcher(monkeypatch):
    monkeypatch.setattr(rebinding, "_WATCHER", rebinding._Watcher())
    finders = list(sys.meta_path)
    yield
    sys.meta_path[:] = finders


def tenfold(original):
    return lambda x: 10 * original(x)


def rebind(package):
    names = {"double": tenfold, "no_such_function": tenfold}
    rebinding.rebind_functions(f"{package}.kernels", names, (package,))


def test_module_that_is_imported_later(package):
    rebind(package)
    assert f"{package}.kernels" not in sys.modules
    user = importlib.import_module(f"{package}.user")
    assert user.twice(1) == 20
    assert user.keep(1) == 1
    assert not hasattr(sys.modules[f"{package}.kernels"], "no_such_function")


def test_module_that_is_loaded_already(package):
    user = importlib.import_module(f"{package}.user")
    before = user.twice
    assert before(1) == 2
    rebind(package)
    assert sys.modules[f"{package}.kernels"].double(1) == 20
    assert user.twice(1) == 20
    assert user.keep(1) == 1


def test_second_time_does_nothing(package):
    rebind(package)
    rebind(package)
    assert importlib.import_module(f"{package}.user").twice(1) == 20
    rebind(package)
    assert importlib.import_module(f"{package}.user").twice(1) == 20


def test_sources_can_still_be_read(package):
    rebind(package)
    module = importlib.import_module(f"{package}.kernels")
    assert inspect.getsource(module) == KERNELS
    assert type(module.__loader__) is type(module.__spec__.loader)
    assert "_Rebinding" not in type(module.__loader__).__name__


def test_missing_module_stays_missing(package):
    rebinding.rebind_functions(f"{package}.no_such_module", {"f": tenfold}, (package,))
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module(f"{package}.no_such_module")


def test_what_cannot_be_served_goes_to_the_original(caplog):
    announce.cache_clear()
    caplog.set_level(logging.INFO)
    seen = []

    def original(q, k, v, *rest):
        """Of the engine."""
        seen.append(q.dtype)
        return "engine"

    original.__module__ = "engine.kda"
    replacement = modules._served_here(lambda *_: "ours", modules._form_of_rows)
    call = replacement(original)
    half, full = (torch.zeros(1, 4, 2, 64, dtype=d) for d in (torch.bfloat16, torch.float32))
    assert call(half, half, half) == "ours"
    assert call(full, full, full) == call(full, full, full) == "engine"
    assert seen == [torch.float32] * 2
    assert call.__doc__ == "Of the engine."
    lines = [r.getMessage() for r in caplog.records]
    assert lines == [
        "fa_triton: engine.kda.original stays with vLLM: q, k and v must be float16 or bfloat16, "
        "got torch.float32"
    ]


def test_a_bound_that_cannot_be_served_goes_to_the_original():
    """By position and by name, in every call that takes one."""
    announce.cache_clear()
    rows = (torch.zeros(1, 4, 2, 64, dtype=torch.bfloat16),) * 3

    def ours(q, k, v, scale=None, lower_bound=None):
        return "ours"

    call = modules._served_here(ours, modules._form_of_rows)(lambda *_, **__: "engine")
    assert call(*rows, None, -7.0) == call(*rows, lower_bound=-7.0) == "engine"
    assert call(*rows, None, -2.0) == call(*rows, lower_bound=None) == call(*rows) == "ours"


def test_calls_by_name_find_the_device():
    call = modules._where_no_gpu(lambda state, indices: "ours")(lambda **_: "engine")
    state = torch.zeros(2)
    assert call(state, indices=state) == call(state=state, indices=state) == "ours"


def test_every_binding_names_a_call_of_ours():
    """Three generations of modules; none is imported for it."""
    before = set(sys.modules)
    modules.bind_kda()
    modules.bind_kda()
    assert set(rebinding._WATCHER.waiting) == set(modules.BINDINGS)
    assert {name for name in set(sys.modules) - before if name.startswith("vllm")} == set()
    names = {name for functions in modules.BINDINGS.values() for name in functions}
    assert {"chunk_kda", "fused_recurrent_kda", "run_chunk_kda"} <= names
