"""SuGaR's own commands on a 3DGS folder that stage 0 has written do what they say."""

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.recon.data import open_splat_folder
from fieldwatch.record import read_manifest

SCALE = 0.02
SHORT = ("--coarse-iterations", 12000, "--schedule-scale", SCALE)
"""The coarse stage to iteration 12,000 of the original schedule: 100 steps that reach each of its windows."""


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


def test_what_happens_now_and_then_is_timed(continued):
    history = read_history(continued)
    changed = {
        "Time/prune",
        "Time/neighbors",
    }  # what SuGaR's guide plans to time: the search of neighbors, and the prune
    assert changed <= set(history.names())
    assert history["Time/prune"].steps.tolist() == [179]
    assert all(history[name].values.min() > 0 for name in changed)
    tags = EventAccumulator(str(continued / "tensorboard")).Reload().Tags()["scalars"]
    assert changed <= set(tags)


def scalar_tags(folder):
    return set(EventAccumulator(str(folder / "tensorboard")).Reload().Tags()["scalars"])


def test_density_with_profiled_tensors(train, stage0):
    folder = train("-c", stage0, *"-i 7000 -r density --profile_tensors True".split(), *SHORT)
    history = read_history(folder)
    assert history["Loss/component_sdf_density"].steps.tolist() == list(range(180, 240))
    categories = ("parameters", "gradients", "activations", "buffers")
    profiled = {f"TensorProfiling/Tensor_Category/{name}_MB" for name in categories}
    assert profiled <= scalar_tags(folder)
    assert history["TensorProfiling/Tensor_Category/parameters_MB"].steps.tolist() == [149, 199]
    (log,) = (folder / "profiles").glob("tensor_profile_*.log")
    assert log.read_text().count("Iteration ") == 2


def test_sdf_with_profiled_tensors_under_the_other_name(train, stage0):
    words = "-i 7000 -r sdf --profile_tensors True --profile-names Memory".split()
    folder = train("-c", stage0, *words, *SHORT)
    history = read_history(folder)
    assert history["Loss/component_sdf_estimation"].steps.tolist() == list(range(180, 240))
    named = {f"Memory/{name}" for name in ("Tensor_Category/parameters_MB", "Tensor_DType/float32_MB")}
    named |= {"Memory/Large_Tensors/count", "Memory/Large_Tensors/total_MB", "Memory/fragmentation_percent"}
    tags = scalar_tags(folder)
    assert named <= tags
    assert not any(tag.startswith("TensorProfiling/") for tag in tags)


def test_without_the_terms_that_were_added_the_composition_is_the_original_one(train, stage0):
    alone = ("--flatness-weight", 0, "--better-normal-weight", 0)
    folder = train("-c", stage0, *"-i 7000 -r dn_consistency".split(), *SHORT, *alone)
    history = read_history(folder)
    windows = {
        name.removeprefix("Loss/component_"): (int(history[name].steps[0]), int(history[name].steps[-1]))
        for name in history.names()
        if name.startswith("Loss/component_")
    }
    assert windows == {
        "rendering": (140, 239),
        "entropy_regularization": (140, 179),
        "depth_normal_consistency": (140, 239),
        "sdf_density": (180, 239),
    }


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
