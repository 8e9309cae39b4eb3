"""What every forked test of this folder needs, done once in the parent."""

from __future__ import annotations

import contextlib
import importlib

KERNELS = (
    "kda_gate",
    "kda_qk_norm",
    "kda_prepare_spans",
    "kda_prepare_scores",
    "kda_prepare_diagonal",
    "kda_prepare_inverse",
    "kda_prepare_merge",
    "kda_post_wu",
    "kda_fwd_h",
    "kda_finalize",
)

# Without the native path there is nothing to prepare.
with contextlib.suppress(ImportError):
    importlib.import_module("fa_triton.native.kernel")
    native = importlib.import_module("fa_triton.native.fingerprint")
    for name in KERNELS:
        native.fingerprint(getattr(importlib.import_module(f"fa_triton.kernels.{name}"), name))
