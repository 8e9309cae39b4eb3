"""The command line: light help, one-line errors, installation hints."""

from __future__ import annotations

import subprocess
import sys

import pytest

from fa_triton import __version__
from fa_triton.cli.main import SUBCOMMANDS, missing_package_message


def run_cli(*args: str) -> subprocess.CompletedProcess[str]:
    """Run ``fa-triton`` in a new interpreter."""
    return subprocess.run(
        [sys.executable, "-m", "fa_triton.cli.main", *args],
        capture_output=True,
        text=True,
        check=False,
    )


def test_version():
    assert run_cli("--version").stdout.strip() == f"fa_triton {__version__}"


def test_help_names_every_subcommand():
    text = run_cli("--help").stdout
    assert all(name in text for name in SUBCOMMANDS)


def test_help_imports_neither_torch_nor_triton():
    code = (
        "import sys\n"
        "sys.argv = ['fa-triton', '--help']\n"
        "from fa_triton.cli.main import app\n"
        "try:\n    app()\nexcept SystemExit:\n    pass\n"
        "sys.stderr.write(str({'torch', 'triton'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == "set()"


@pytest.mark.parametrize("name", sorted(SUBCOMMANDS))
def test_every_subcommand_has_help(name):
    done = run_cli(name, "--help")
    assert done.returncode == 0, done.stderr
    assert "Usage" in done.stdout


def test_unknown_subcommand_is_refused():
    done = run_cli("bogus")
    assert done.returncode == 2
    assert "bogus" in done.stderr
    assert "Traceback" not in done.stderr


def test_missing_package_names_the_extra():
    text = missing_package_message("transformers.models", (3, 11))
    assert text == "`transformers.models` is missing: pip install 'fa_triton[demo]'"


def test_missing_triton_on_a_newer_python_names_the_versions():
    text = missing_package_message("triton", (3, 12))
    assert text is not None
    assert "3.10 and 3.11" in text
    assert "3.12" in text


def test_unknown_module_has_no_hint():
    assert missing_package_message("fa_triton.cli.nothing", (3, 11)) is None
