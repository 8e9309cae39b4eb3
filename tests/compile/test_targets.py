import pytest

from fa_triton.targets import A2, A3, A5, TARGETS, target


def test_default_devices():
    assert [(t.name, t.arch) for t in TARGETS] == [
        ("A2", "Ascend910B3"),
        ("A3", "Ascend910_9392"),
        ("A5", "Ascend950PR_9589"),
    ]


@pytest.mark.parametrize(
    ("name", "family", "cube_cores"),
    [
        ("Ascend910B1", "A2", 24),
        ("Ascend910B2C", "A2", 24),
        ("Ascend910B4-1", "A2", 20),
        ("Ascend910_9362", "A3", 20),
        ("Ascend910_9391", "A3", 24),
        ("Ascend950PR_957c", "A5", 28),
        ("Ascend950DT_95A2", "A5", 36),
        ("Ascend950PR_950z", "A5", 4),
    ],
)
def test_named_devices(name, family, cube_cores):
    found = target(name)
    assert (found.name, found.family) == (name, family)
    assert (found.cube_cores, found.vector_cores) == (cube_cores, 2 * cube_cores)


def test_memories_differ_between_generations_only():
    assert (A2.ub_bytes, A2.l0c_bytes) == (A3.ub_bytes, A3.l0c_bytes)
    assert (A5.ub_bytes // 1024, A5.l1_bytes // 1024, A5.l0c_bytes // 1024) == (248, 512, 256)


@pytest.mark.parametrize("name", ["A4", "", "Ascend310B1", "Ascend910_950z", "cuda"])
def test_unknown_target_lists_known_ones(name):
    with pytest.raises(ValueError, match="`target` must be one of A2, A3, A5 or a device name"):
        target(name)
