"""From a run to a textured mesh, judged and shown, by the program itself; killed on the way; watched in training."""

import contextlib
import io
import json
import signal
import time
from pathlib import Path

import pytest
import torch

from fieldwatch import Checkpoints, read_history
from fieldwatch.cli import main
from fieldwatch.recon.mesh import read_mesh
from fieldwatch.recon.pipelines.splats import Gaussians, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.start import start_run
from fieldwatch.record import read_events

CONFIG = SplatsConfig(views=9, held_out=3, device="cpu", schedule_scale=0.001)
EXTRACT = "--resolution 36 --points 10000 --triangles 600 --no-background --no-pictures".split()
REFINE = (
    "--device cpu --threads 1 --turntable 0 --iterations 12 --degree 1 --checkpoint-interval 2 --keep-last 9".split()
)
TRAIN = (
    "--views 9 --held-out 3 --device cpu --threads 1 --turntable 0 --schedule-scale 1 --regularization none "
    "--coarse-iterations 4 --test-iterations 2"
).split()


def answered(*words):
    """The answer of a command that ends well."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed):
        code = main([str(word) for word in (*words, "--json")])
    assert code in (0, 1), printed.getvalue()
    return json.loads(printed.getvalue())


@pytest.fixture(scope="module")
def opaque(tmp_path_factory):
    """A run with opaque Gaussians on the points of the built-in scene; nobody may change it."""
    folder = tmp_path_factory.mktemp("story") / "run"
    scene = prepare_scene(CONFIG)
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1, opacity=0.9)
    with start_run(CONFIG, scene, folder, sinks=()) as run:
        run.track(**SplatModel(gaussians, scene.background).checkpoint_items())
        run.resume()
        for _ in run.steps(2):
            run.save_after_step({"psnr": 1.0})
    return folder


@pytest.fixture(scope="module")
def extracted(opaque, tmp_path_factory):
    """The coarse mesh."""
    out = tmp_path_factory.mktemp("coarse")
    return Path(answered("mesh", "extract", opaque, *EXTRACT, "--out", out)["files"]["level0.3"])


@pytest.fixture(scope="module")
def refined(opaque, extracted, tmp_path_factory):
    """The run of a refinement that nobody interrupted."""
    folder = tmp_path_factory.mktemp("fine") / "refined"
    answered("mesh", "refine", opaque, extracted, *REFINE, "--out", folder)
    return folder


def test_from_a_run_to_a_textured_mesh_that_is_judged_and_shown(opaque, extracted, refined, tmp_path):
    mesh = refined / "products" / "refined_mesh.ply"
    assert len(read_mesh(mesh).faces) == len(read_mesh(extracted).faces) <= 600

    words = ("--layout", "squares", "--size", 128, "--device", "cpu", "--out", tmp_path / "textured")
    textured = {kind: Path(place) for kind, place in answered("mesh", "texture", opaque, mesh, *words)["files"].items()}
    assert set(textured) == {"obj", "mtl", "png", "glb"}
    assert read_mesh(textured["obj"]).texture.shape == (128, 128, 3)

    judged = answered("mesh", "quality", textured["obj"], "--open")
    assert judged["grade"]["word"]
    assert judged["quality"]["n_faces"] == len(read_mesh(mesh).faces)

    words = ("--gt", "built-in", "--resolution", 64, "--samples", 4000, "--visible-from", opaque)
    found = answered("mesh", "evaluate", mesh, *words, "--out", tmp_path / "evaluated")
    assert 0 < found["chamfer_percent"] < 4
    assert all(Path(place).stat().st_size > 0 for place in found["files"].values())

    page = tmp_path / "mesh.html"
    assert main(["mesh", "view", str(textured["glb"]), "-o", str(page)]) == 0
    assert '"glb":' in page.read_text()


def saved(folder):
    """Step of the newest checkpoint, without looking into files that are being written."""
    numbers = (path.name.split("_")[-1].split(".")[0] for path in (folder / "checkpoints").glob("*"))
    return max((int(number) for number in numbers if number.isdigit()), default=0)


def test_a_refinement_killed_half_way_goes_on_by_the_same_command_to_the_same_mesh(
    opaque, extracted, refined, tmp_path, start
):
    folder = tmp_path / "killed"
    words = ("mesh", "refine", opaque, extracted, *REFINE, "--out", folder)
    process = start(*words)
    deadline = time.monotonic() + 120
    while saved(folder) < 4 and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    _, errors = process.communicate()
    assert process.returncode == -signal.SIGKILL, errors
    assert 4 <= saved(folder) < 12
    assert not (folder / "products" / "refined_mesh.ply").exists()

    answered(*words)
    one, other = (place / "products" / "refined_mesh.ply" for place in (refined, folder))
    assert one.read_bytes() == other.read_bytes()
    losses = [read_history(place)["Loss/total"] for place in (refined, folder)]
    assert losses[0].steps.tolist() == losses[1].steps.tolist() == list(range(12))
    assert losses[0].values.tolist() == losses[1].values.tolist()


@pytest.fixture(scope="module")
def train(opaque, tmp_path_factory):
    """Train some steps from the opaque Gaussians, or with other words; returns the run folder."""
    start_from = tmp_path_factory.mktemp("stage0") / "3dgs"
    answered("export", opaque, "--to", "3dgs", "-o", start_from, "--checkpoint", "last", "--device", "cpu")
    go_on = ("-c", start_from, "-i", 2000)

    def run(*words, begin=go_on):
        folder = tmp_path_factory.mktemp("watched") / "run"
        answered("train", "splats", *begin, *TRAIN, "--out", folder, *words)
        return folder

    return run


def mesh_values(folder):
    history = read_history(folder)
    return {name: history[name] for name in history.names() if name.startswith("Mesh/")}


def test_test_meshes_are_measured_at_every_evaluation_and_training_does_not_notice(train):
    plain = train()
    watched = train("--extract-test-meshes")
    evaluated = read_history(watched)["Test/psnr"].steps.tolist()
    values = mesh_values(watched)
    assert len(evaluated) == 2
    assert len(values) >= 28
    assert all(found.steps.tolist() == evaluated for found in values.values())
    assert values["Mesh/Topology/n_faces"].values.min() > 1000
    assert values["Mesh/GaussianFit/avg_distance"].values.max() < 0.1
    told = [event for event in read_events(watched) if event["kind"] == "test_mesh"]
    assert [(event["why_none"], event["metrics"]) for event in told] == [(None, len(values))] * 2

    assert mesh_values(plain) == {}
    one, other = (Checkpoints(folder / "checkpoints").read("last")["gaussians"] for folder in (plain, watched))
    assert all(torch.equal(one[name], other[name]) for name in one)
    losses = [read_history(folder)["Loss/total"].values.tolist() for folder in (plain, watched)]
    assert losses[0] == losses[1]


def test_a_test_mesh_that_cannot_be_made_is_said_and_training_goes_on(train):
    folder = train("--extract-test-meshes", begin=())
    told = [event for event in read_events(folder) if event["kind"] == "test_mesh"]
    assert len(told) == 2
    assert all("greater than 0.5" in event["why_none"] and event["metrics"] == 0 for event in told)
    assert mesh_values(folder) == {}
    assert read_history(folder)["Loss/total"].steps.tolist() == [0, 1, 2, 3]
