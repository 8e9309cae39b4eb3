import pytest

from fa_triton.compile import mix_mode

LINALG = (
    "func.func @kernel(%arg0: memref<?xi8>) attributes {SyncBlockLockArgIdx = 0 : i64, "
    'WorkspaceArgIdx = 1 : i64, global_kernel = "", mix_mode = "mix", parallel_mode = "simd"} {'
)


@pytest.fixture(autouse=True)
def untouched():
    pytest.importorskip("triton.backends.ascend.compiler")
    mix_mode.uninstall()
    yield
    mix_mode.uninstall()


def test_install_keeps_the_attribute():
    assert not mix_mode.is_kept()
    assert mix_mode.as_compiled(LINALG) != LINALG
    assert mix_mode.install()
    assert mix_mode.is_kept()
    assert mix_mode.as_compiled(LINALG) == LINALG


def test_metadata_is_what_it_was():
    compiler = mix_mode._compiler_module()
    before = compiler._parse_linalg_metadata(LINALG, {})[1]
    mix_mode.install()
    assert compiler._parse_linalg_metadata(LINALG, {})[1] == before
    assert before["mix_mode"] == "mix"
    assert before["name"] == "kernel mix"


def test_second_install_changes_nothing():
    assert mix_mode.install()
    installed = mix_mode._compiler_module()._parse_linalg_metadata
    assert not mix_mode.install()
    assert mix_mode._compiler_module()._parse_linalg_metadata is installed


def test_no_change_where_the_attribute_is_kept_already(monkeypatch):
    compiler = mix_mode._compiler_module()

    def later_version(linalg, metadata):
        return linalg, metadata

    monkeypatch.setattr(compiler, "_parse_linalg_metadata", later_version)
    assert not mix_mode.install()
    assert compiler._parse_linalg_metadata is later_version


def test_uninstall():
    original = mix_mode._compiler_module()._parse_linalg_metadata
    assert not mix_mode.uninstall()
    mix_mode.install()
    assert mix_mode.uninstall()
    assert mix_mode._compiler_module()._parse_linalg_metadata is original
