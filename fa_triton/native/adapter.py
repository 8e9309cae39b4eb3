"""Triton's IR to Linalg by triton-adapter-opt, which now and then dies on a sound kernel."""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Mapping
from typing import Any

from fa_triton.native.errors import LoweringError

logger = logging.getLogger(__name__)

# triton-to-unstructure of 3.2.0 reads freed memory: with some kernels one run in a hundred dies of
# it, at addresses that differ from run to run. A run that ends writes the same text every time.
_ATTEMPTS = 6


def adapt(module: Any, metadata: Mapping[str, Any], options: Any) -> str:
    """Lower a TTIR module to Linalg text; a run that was killed by a signal is made again.

    Args:
        module: The module, after triton's own passes.
        metadata: Options by name, as triton hands them to its stages.
        options: The backend's parsed options.

    Raises:
        LoweringError: The adapter refused the module, or died of it every time.
    """
    from triton.backends.ascend.compiler import ttir_to_linalg

    attempts = 0
    while True:
        attempts += 1
        try:
            return ttir_to_linalg(module, metadata, options, named_ops=True)
        except subprocess.CalledProcessError as error:
            if error.returncode >= 0 or attempts == _ATTEMPTS:
                output = (error.stderr or b"").decode(errors="replace")
                raise LoweringError("triton-adapter-opt", output, str(module)) from error
            logger.info("triton-adapter-opt died of signal %d", -error.returncode)
