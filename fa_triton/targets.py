"""The Ascend devices that kernels are compiled for: cores and on-chip memories."""

from __future__ import annotations

from dataclasses import dataclass

KIB = 1024

# What `A2`, `A3` and `A5` stand for when no exact device is named.
DEFAULT_ARCH = {"A2": "Ascend910B3", "A3": "Ascend910_9392", "A5": "Ascend950PR_9589"}

# Cube cores by the start of the device name, as the compilers state them; the longest match
# counts. Each cube core has two vector cores.
_CUBE_CORES = {
    "Ascend910B1": 24,
    "Ascend910B2": 24,
    "Ascend910B3": 20,
    "Ascend910B4": 20,
    "Ascend910_936": 20,
    "Ascend910_937": 20,
    "Ascend910_938": 24,
    "Ascend910_939": 24,
    "Ascend950PR_950": 4,
    "Ascend950PR_957": 28,
    "Ascend950PR_958": 32,
    "Ascend950PR_959": 36,
    "Ascend950DT_950": 8,
    "Ascend950DT_957": 28,
    "Ascend950DT_958": 32,
    "Ascend950DT_959": 36,
    "Ascend950DT_95A": 36,
}

_FAMILY = {"Ascend910B": "A2", "Ascend910_93": "A3", "Ascend950": "A5"}


@dataclass(frozen=True)
class Target:
    """One Ascend device.

    Attributes:
        name: ``A2``, ``A3``, ``A5``, or the device name if another one was asked for.
        arch: Device name as the compilers know it.
        family: ``A2``, ``A3`` or ``A5``: decides compiler and on-chip data paths.
        cube_cores: Matrix cores (AIC).
        vector_cores: Vector cores (AIV), two per cube core.
        ub_bytes: Unified buffer of one vector core.
        l1_bytes: L1 buffer of one cube core.
        l0a_bytes: Left operand buffer of one cube core.
        l0b_bytes: Right operand buffer of one cube core.
        l0c_bytes: Accumulator buffer of one cube core.
    """

    name: str
    arch: str
    family: str
    cube_cores: int
    vector_cores: int
    ub_bytes: int
    l1_bytes: int
    l0a_bytes: int
    l0b_bytes: int
    l0c_bytes: int

    @property
    def is_a5(self) -> bool:
        """Whether cube and vector cores exchange tiles on chip (Ascend 950)."""
        return self.family == "A5"


def target(name: str) -> Target:
    """Look a target up.

    Args:
        name: ``A2``, ``A3``, ``A5`` or a device name such as ``Ascend910B1``.

    Raises:
        ValueError: No such target.
    """
    arch = DEFAULT_ARCH.get(name, name)
    cube_cores = max(
        ((len(start), cores) for start, cores in _CUBE_CORES.items() if arch.startswith(start)),
        default=(0, 0),
    )[1]
    family = next((f for start, f in _FAMILY.items() if arch.startswith(start)), None)
    if not cube_cores or family is None:
        raise ValueError(
            f"`target` must be one of {', '.join(DEFAULT_ARCH)} or a device name that starts "
            f"with one of {', '.join(_CUBE_CORES)}, got {name!r}"
        )
    a5 = family == "A5"
    return Target(
        name=name,
        arch=arch,
        family=family,
        cube_cores=cube_cores,
        vector_cores=2 * cube_cores,
        ub_bytes=(248 if a5 else 192) * KIB,
        l1_bytes=512 * KIB,
        l0a_bytes=64 * KIB,
        l0b_bytes=64 * KIB,
        l0c_bytes=(256 if a5 else 128) * KIB,
    )


A2 = target("A2")
A3 = target("A3")
A5 = target("A5")
TARGETS = (A2, A3, A5)
