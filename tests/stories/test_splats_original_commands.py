"""SuGaR's own commands on a 3DGS folder that stage 0 has written do what they say."""

import pytest

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.recon.data import open_splat_folder
from fieldwatch.record import read_manifest

SCALE = 0.02


@pytest.fixture(scope="module")
def train(tmp_path_factory):
    """Train in this process; the run folder."""

    def run(*words):
        folder = tmp_path_factory.mktemp("runs") / "run"
        tail = ["--out", str(folder), "--device", "cpu", "--threads", "1", "--turntable", "0"]
        assert main(["train", "splats", *map(str, words), *tail]) in (0, 1)
        return folder

    return run


@pytest.fixture(scope="module")
def stage0(train):
    """The 3DGS folder that a short run on the built-in scene leaves of its stage 0."""
    folder = train(*f"--views 6 --schedule-scale {SCALE} --coarse-iterations 7000 --growth none".split())
    (ply,) = folder.rglob("iteration_7000/point_cloud.ply")
    return ply.parents[2]


@pytest.fixture(scope="module")
def continued(train, stage0):
    """The coarse stage from there, shortened."""
    return train(*f"-c {stage0} -i 7000 -r dn_consistency --coarse-iterations 15000 --schedule-scale {SCALE}".split())


def test_stage_0_leaves_a_folder_as_3dgs_does(stage0):
    found = open_splat_folder(stage0)
    assert found.iterations == (7000,)
    assert len(found.cameras) == 6
    assert len(found.gaussians(7000)) > 1000


def test_every_term_acts_in_its_window(continued):
    history = read_history(continued)

    def acted(term):
        steps = history[f"Loss/component_{term}"].steps.astype(int).tolist()
        assert steps == list(range(steps[0], steps[-1] + 1))
        return steps[0], steps[-1]

    assert acted("rendering") == (140, 299)
    assert acted("entropy_regularization") == (140, 179)
    assert acted("depth_normal_consistency") == (140, 299)
    assert acted("sdf_density") == (180, 299)
    assert acted("better_normal") == (180, 299)
    about = read_manifest(continued).about
    assert (about["loaded"], about["scale"]) == (7000, SCALE)


def test_the_prune_comes_between_entropy_and_density(continued):
    size = read_history(continued)["Model/size"]
    before, after = (size.values[size.steps.tolist().index(step)] for step in (179, 181))
    assert after < before


def evaluated(folder):
    return read_history(folder)["Test/psnr"].positions.tolist()


def test_the_quick_validation_trains_200_steps_and_evaluates_three_times(train, stage0):
    folder = train(
        *("-c", stage0),
        *"-r dn_consistency --coarse_iterations 200 --test_iterations 100 150 200 --eval True".split(),
    )
    assert evaluated(folder) == [7100, 7150, 7200]
    history = read_history(folder)
    assert history["Loss/total"].steps.tolist() == list(range(7000, 7200))
    assert {"Loss/component_entropy_regularization", "Loss/component_depth_normal_consistency"} <= set(history.names())
    assert "Loss/component_sdf_density" not in history


def test_the_full_validation_trains_to_10000_in_three_windows(train, stage0):
    command = "-r dn_consistency --coarse_iterations 10000 --test_iterations 7000 8000 9000 10000 --eval True"
    folder = train("-c", stage0, *command.split(), "--schedule-scale", SCALE)
    assert evaluated(folder) == [140, 160, 180, 200]
    history = read_history(folder)
    assert history["Loss/component_entropy_regularization"].steps.tolist() == list(range(140, 180))
    assert history["Loss/component_depth_normal_consistency"].steps.tolist() == list(range(140, 200))
    assert history["Loss/component_sdf_density"].steps.tolist() == list(range(180, 200))
