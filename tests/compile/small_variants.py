"""Variants made of the small kernels, as a stand-in for what is shipped."""

from fa_triton.compile.variant import FULL, VECTOR_ONLY, KernelVariant
from tests.compile.small_kernels import ATTEND_SIGNATURE, COPY_ROWS_SIGNATURE, attend_constants


def attend_variant(form="good", tile="64x128", properties=FULL, targets=("A2", "A5")):
    block_q, block_kv = map(int, tile.split("x"))
    return KernelVariant(
        op="attend_op",
        kernel="attend",
        tile=tile,
        key=f"attend-{form}-{tile}",
        jit="tests.compile.small_kernels:attend",
        signature=ATTEND_SIGNATURE,
        constants=attend_constants(form, block_q, block_kv),
        properties=dict.fromkeys(targets, properties),
    )


def copy_variant(d=64):
    return KernelVariant(
        op="copy_op",
        kernel="copy",
        tile=f"16x{d}",
        key=f"copy-{d}",
        jit="tests.compile.small_kernels:copy_rows",
        signature=COPY_ROWS_SIGNATURE,
        constants={"ROWS": 16, "D": d, "FORM": "plain"},
        properties={"A2": VECTOR_ONLY},
    )
