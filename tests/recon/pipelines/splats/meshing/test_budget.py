"""Memory budget of an extraction."""

import psutil
import pytest

from fieldwatch.recon.pipelines.splats.meshing.budget import GIBIBYTE, MemoryBudget


def taken() -> float:
    return psutil.Process().memory_info().rss / GIBIBYTE


@pytest.mark.machine
def test_what_is_left_is_the_limit_less_what_is_taken() -> None:
    limit = taken() + 1.0
    budget = MemoryBudget(limit)
    assert budget.limited
    assert budget.left() / GIBIBYTE == pytest.approx(limit - taken(), abs=0.05)
    assert budget.share(0.25) == pytest.approx(budget.left() / 4, rel=0.05)


@pytest.mark.machine
def test_shares_follow_what_is_taken_meanwhile() -> None:
    budget = MemoryBudget(taken() + 1.0)
    before = budget.left()
    block = bytearray(b"x") * (300 << 20)
    assert before - budget.left() > 250 << 20
    del block


def test_no_limit_leaves_enough_for_everything() -> None:
    budget = MemoryBudget(None)
    assert not budget.limited
    assert budget.share(0.5) > 4 * GIBIBYTE


@pytest.mark.machine
def test_fewer_rays_at_once_with_less_memory_and_never_none() -> None:
    assert MemoryBudget(taken() + 0.15).rays() >= 256
    assert MemoryBudget(taken() + 0.15).rays() <= MemoryBudget(None).rays()


@pytest.mark.machine
def test_limit_below_what_is_taken_is_refused_with_one_that_suffices() -> None:
    with pytest.raises(ValueError, match=r"--memory 0\.05 GiB: .* \d\.\d\d GiB; .*at least \d") as refused:
        MemoryBudget(0.05)
    wanted = float(str(refused.value).rsplit(" ", 1)[-1])
    assert MemoryBudget(wanted + 0.1).left() > 0


def test_more_points_or_faces_than_fit_are_refused_with_how_many_fit() -> None:
    budget = MemoryBudget(taken() + 0.25)
    with pytest.raises(ValueError, match=r"room for \d+ surface.*be 9000000: give --points \d+"):
        budget.check_points(9_000_000)
    with pytest.raises(ValueError, match=r"of 4000000 faces, .*: a resolution of \d+ fits") as refused:
        budget.check_faces(4_000_000, 400)
    fitting = int(str(refused.value).split("a resolution of ")[1].split()[0])
    budget.check_faces(int(0.9 * 4_000_000 * (fitting / 400) ** 2), fitting)
    budget.check_points(1000)
    MemoryBudget(None).check_points(9_000_000)
