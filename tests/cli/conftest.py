"""A tiny clip and a run trained on it, made once by the command line itself."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from fieldwatch import Checkpoints
from fieldwatch.cli import main
from fieldwatch.recon.data import SolidUnion, synthetic_clip
from fieldwatch.recon.pipelines.normals import NormalsConfig, prepare_scene
from fieldwatch.recon.pipelines.normals.config import FieldOptions, RenderOptions
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.start import start_run

FRAMES = 8
# fmt: off
TINY = (
    "--epochs", "2", "--batch", "2", "--data-split", "3_3_4", "--rows", "2", "--columns", "2", "--device", "cpu",
    "--teacher", "descriptor", "--pixel-loss-warmup-epochs", "1", "--attribute-every", "0", "--checkpoint-epochs", "1",
    "--grid-widths", "8", "8", "8", "--grid-blocks", "0", "0", "0", "--between-weight", "0",
)
# fmt: on
"""Two epochs of 3 steps; the semantic head trains in the second one only."""


@pytest.fixture(scope="session")
def frames(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("clip") / "frames"
    folder.mkdir()
    for i, frame in enumerate(synthetic_clip(FRAMES, 32, 64)):
        Image.fromarray(frame.permute(1, 2, 0).numpy()).save(folder / f"frame_{i:03d}.png")
    return folder


@pytest.fixture(scope="session")
def train(frames, tmp_path_factory) -> Callable[..., Path]:
    """Train a tiny run; the words given come after the usual ones and win."""

    def train(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "tiny"
        cache = str(frames.parent / "cache")
        line = ["train", "video", "--data", str(frames), "--out", str(folder), "--cache", cache, *TINY, *words]
        assert main(line) in (0, 1)
        return folder

    return train


@pytest.fixture(scope="session")
def trained(train) -> Path:
    """A finished run; nobody may change it."""
    return train()


@pytest.fixture(scope="session")
def trained_hnerv(train) -> Path:
    """A finished run of a network that encodes the frames; nobody may change it."""
    return train("--model", "hnerv", "--enc-strds", "4", "4", "--fc-dim", "12", "--lower-width", "4")


@pytest.fixture
def run(trained, tmp_path) -> Path:
    """A copy of the finished run, to be written to."""
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def fieldwatch(capsys) -> Callable[..., tuple[int, str, str]]:
    """Run a command line: exit code, standard output, standard error."""

    def call(*words: object) -> tuple[int, str, str]:
        capsys.readouterr()
        try:
            code = main([str(word) for word in words])
        except SystemExit as usage:  # tyro ends wrong usage and --help itself
            code = int(usage.code or 0)
        return (code, *capsys.readouterr())

    return call


@pytest.fixture
def refused(fieldwatch) -> Callable[..., str]:
    """Run a command line that is bad input: one message on standard error, nothing on standard output."""

    def call(*words: object) -> str:
        code, out, message = fieldwatch(*words)
        assert (code, out) == (2, ""), message
        assert "Traceback" not in message
        return " ".join(message.split())

    return call


@pytest.fixture
def answer(fieldwatch) -> Callable[..., dict]:
    """Run a command line that succeeds, and read its JSON."""

    def call(*words: object) -> dict:
        code, out, message = fieldwatch(*words, "--json")
        assert code == 0, message
        return json.loads(out)

    return call


# fmt: off
TINY_SPLATS = (
    "--views", "6", "--held-out", "3", "--coarse-iterations", "15000", "--schedule-scale", "0.002", "--device", "cpu",
    "--growth-cap", "1500", "--test-iterations", "10000", "--turntable", "0.1", "--threads", "1",
    "--prune-below", "0.01",
)
# fmt: on
"""Thirty steps on six views of the built-in scene, two of them held out; too few to grow opaque."""


@pytest.fixture(scope="session")
def train_splats(tmp_path_factory) -> Callable[..., Path]:
    """Train tiny splats; the words given come after the usual ones and win."""

    def train(*words: str) -> Path:
        folder = tmp_path_factory.mktemp("runs") / "splats"
        assert main(["train", "splats", "--out", str(folder), *TINY_SPLATS, *words]) in (0, 1)
        return folder

    return train


@pytest.fixture(scope="session")
def trained_splats(train_splats) -> Path:
    """A finished run of splats; nobody may change it."""
    return train_splats()


@pytest.fixture
def splats(trained_splats, tmp_path) -> Path:
    """A copy of the finished run, to be written to."""
    return Path(shutil.copytree(trained_splats, tmp_path / "splats"))


@pytest.fixture(scope="session")
def trained_normals(tmp_path_factory) -> Path:
    """A run of normals with checkpoints of a ball (4) and of about the built-in object (9); nobody may change it."""
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("runs") / "normals"
    config = NormalsConfig(
        views=4,
        size=32,
        held_out=4,
        steps=10,
        device="cpu",
        mesh_resolution=32,
        sdf=FieldOptions(
            levels=5, base_resolution=6, finest_resolution=40, table_bits=13, hidden=32, levels_by=0, first_levels=5
        ),
        rendering=RenderOptions(grid_resolution=16, sharpness="scheduled", first_step=0.02, last_step=0.02),
    )
    scene = prepare_scene(config)
    model = first_model(config, scene)
    with start_run(config, scene, folder) as run:
        assert len(list(run.steps(1))) == 1
    model.set_sharpness(300.0)
    store = Checkpoints(folder / "checkpoints")
    store.save(4, {"model": model}, metrics={"mae": 40.0})
    solid = SolidUnion()
    optimizer = torch.optim.Adam(model.sdf.parameters(), lr=0.01)
    near = solid.surface_points(3000).float()
    points = torch.cat([near + 0.05 * torch.randn(3000, 3), 2 * torch.rand(2000, 3) - 1]).clamp(-1, 1)
    wanted = solid.distance(points)
    for _ in range(150):
        optimizer.zero_grad()
        (model.sdf(points) - wanted).abs().mean().backward()
        optimizer.step()
    store.save(9, {"model": model}, metrics={"mae": 9.0})
    return folder


@pytest.fixture
def normals_run(trained_normals, tmp_path) -> Path:
    """A copy of it, to be written to."""
    return Path(shutil.copytree(trained_normals, tmp_path / "normals"))
