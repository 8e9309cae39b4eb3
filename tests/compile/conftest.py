"""One compile cache per test session: results do not come from an earlier state of the code."""

import pytest


@pytest.fixture(scope="session", autouse=True)
def compile_cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        directory = tmp_path_factory.mktemp("compile_cache")
        patch.setenv("FA_TRITON_CACHE_DIR", str(directory))
        # The directory of the stand-ins is remembered per process.
        from fa_triton.compile import toolchain

        toolchain.last_step_directory.cache_clear()
        yield directory
        toolchain.last_step_directory.cache_clear()


@pytest.fixture
def fresh_cache(tmp_path, monkeypatch):
    """An empty cache for one test."""
    monkeypatch.setenv("FA_TRITON_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"
