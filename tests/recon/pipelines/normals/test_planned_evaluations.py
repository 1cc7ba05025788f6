"""Evaluations write their files, and neither a successful nor a failed one disturbs training."""

import json
import math

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch import Outputs, Run, Saving, Terms
from fieldwatch.recon.mesh import MeshError, read_mesh
from fieldwatch.recon.pipelines.normals import planned_evaluations
from fieldwatch.recon.pipelines.normals import views as views_module
from fieldwatch.recon.pipelines.normals.model import first_model
from fieldwatch.recon.pipelines.normals.planned_evaluations import PlannedEvaluations
from fieldwatch.recon.pipelines.normals.surface import find_surface
from fieldwatch.record import read_events, read_history

TOTAL = 12


@pytest.fixture(scope="module", autouse=True)
def few_points():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fieldwatch.recon.pipelines.normals.evaluate.SAMPLES", 1000)
        yield


class Loop:
    """A tiny training with everything an evaluation could disturb: random numbers, the grid, Adam, gradients."""

    def __init__(self, ball, folder, **changes):
        defaults = {"steps": TOTAL, "nominal": 120, "evaluate_at": 50, "mesh_at": 50, "poses_at": 50}
        config = ball.config(poses=ball.learned, held_out=4, mesh_resolution=16, **defaults | changes)
        self.scene = ball.scene(config)
        self.folder = folder
        torch.manual_seed(0)
        self.model = first_model(config, self.scene)
        self.evaluations = PlannedEvaluations(config, self.scene, self.model)
        self.states = []

    def train(self, *, validated=True, poison=None):
        torch.manual_seed(1)
        rates = torch.optim.Adam([one for one in self.model.parameters() if one.requires_grad], lr=1e-3)
        with Run(self.folder, saving=Saving(every=None), outputs=Outputs(sinks=())) as run:
            run.track(model=self.model, validation=self.evaluations)
            run.resume()
            if validated:
                self.evaluations.write_first_poses(run)
            for step in run.steps(TOTAL):
                self.model.grid.update(step.index, self.model.sdf)
                points = torch.rand(128, 3) * 2 - 1
                values, slopes = self.model.sdf.with_gradient(points)
                error = (values - points.norm(dim=-1) + 0.5).square().mean() + 0.1 * (
                    slopes.norm(dim=-1) - 1
                ).square().mean()
                terms = Terms(eikonal=(1.0, error + 0.1 * self.model.poses().square().mean()))
                rates.zero_grad()
                terms.total.backward()
                step.observe(terms)
                step.update(rates)
                if poison == step.index:
                    with torch.no_grad():
                        self.model.sdf.last.bias.fill_(math.nan)
                if validated:
                    self.evaluations.evaluate(run, step)
                self.states.append(
                    torch.cat([one.detach().flatten().clone() for one in self.model.state_dict().values()])
                )
        return self


@pytest.fixture(scope="module")
def trained(ball, tmp_path_factory):
    return Loop(ball, tmp_path_factory.mktemp("run")).train()


@pytest.fixture(scope="module")
def unseen(ball, tmp_path_factory):
    return Loop(ball, tmp_path_factory.mktemp("plain")).train(validated=False)


def same(one, other):
    return len(one.states) == TOTAL and all(torch.equal(*pair) for pair in zip(one.states, other.states, strict=True))


def test_training_is_bit_equal_with_and_without(trained, unseen):
    assert same(trained, unseen)
    assert trained.evaluations.failures == 0


def test_files_lie_where_pmni_writes_them(trained):
    found = {str(path.relative_to(trained.folder)) for path in trained.folder.rglob("*") if path.is_file()}
    iterations = ("00000050", "00000100", "00000120")
    assert {f"meshes_validation/iter_{i}.ply" for i in iterations} <= found
    assert {f"poses/{i}.npy" for i in ("00000000", *iterations)} <= found
    for view in ("000", "001", "002", "003"):
        names = (f"normals/00000120_0_{view}.png", f"depths/00000120_0_{view}.png", f"depths/00000120_0_{view}.npy")
        assert set(names) <= found
    assert not any(name.split("/")[-1].startswith(".") and "draft" in name for name in found)
    timeline = json.loads((trained.folder / "poses" / "timeline.json").read_text())
    assert [entry["iteration"] for entry in timeline["entries"]] == [0, 50, 100, 120]
    assert timeline["views"] == ["001", "002", "003"]
    assert np.load(trained.folder / "poses" / "00000120.npy").shape == (3, 4, 4)


def test_pictures_are_empty_outside_of_the_silhouette(trained):
    normals = np.asarray(Image.open(trained.folder / "normals" / "00000120_0_001.png"))
    depth = np.load(trained.folder / "depths" / "00000120_0_001.npy")
    colors = np.asarray(Image.open(trained.folder / "depths" / "00000120_0_001.png"))
    inside = normals[..., 3] > 0
    assert inside.any()
    assert (~inside).any()
    assert (normals[~inside, :3] == 128).all()
    assert np.array_equal(np.isfinite(depth), inside)
    assert np.array_equal(colors[..., 3] > 0, inside)
    decoded = (normals[inside, :3].astype(float) - 128) / 128
    assert np.abs(np.linalg.norm(decoded, axis=1) - 1).max() < 0.02
    assert (decoded[:, 2] > -0.05).all()  # towards the viewer


def test_figures_are_recorded_and_checkpoints_ranked(trained):
    history = read_history(trained.folder)
    assert history["Eval/mae"].values.tolist()[-1] == pytest.approx(trained.evaluations.newest.score)
    assert history["Eval/failures"].values.tolist() == [0, 0, 0]
    saved = [event for event in read_events(trained.folder) if event["kind"] == "checkpoint" and event["metrics"]]
    assert [set(event["metrics"]) for event in saved] == [{"mae"}] * 3
    mesh = read_mesh(trained.folder / "meshes_validation" / "iter_00000120.ply")
    assert mesh.closed


@pytest.mark.parametrize(
    "error", [MeshError("no mesh"), OSError("disk full"), ValueError("x"), ZeroDivisionError("y"), MemoryError("z")]
)
def test_a_failing_validation_is_recorded_and_training_goes_on_as_without(ball, tmp_path, unseen, monkeypatch, error):
    def fails(*_, **__):
        torch.rand(3)  # it may have drawn numbers before
        raise error

    monkeypatch.setattr(planned_evaluations, "evaluate_surface", fails)
    loop = Loop(ball, tmp_path).train()
    assert same(loop, unseen)
    assert loop.evaluations.failures == 3
    assert loop.evaluations.newest is None
    events = [event for event in read_events(tmp_path) if event["kind"] == "validation_failed"]
    assert [event["done"] for event in events] == [5, 10, 12]
    assert events[0]["reason"] == f"{type(error).__name__}: {error}"
    text = (tmp_path / events[0]["file"]).read_text()
    assert "in fails" in text
    assert str(error) in text
    assert read_history(tmp_path)["Eval/failures"].values.tolist() == [1, 2, 3]


def test_a_field_that_is_not_finite_fails_the_validation_only(ball, tmp_path):
    loop = Loop(ball, tmp_path, evaluate_at=60, mesh_at=0).train(poison=TOTAL - 1)
    events = [event for event in read_events(tmp_path) if event["kind"] == "validation_failed"]
    assert len(events) == loop.evaluations.failures == 1
    assert "not finite" in events[0]["reason"]


def test_a_bug_is_not_hidden(ball, tmp_path, monkeypatch):
    def broken(*_, **__):
        raise KeyError("a bug")

    monkeypatch.setattr(planned_evaluations, "evaluate_surface", broken)
    with pytest.raises(KeyError, match="a bug"):
        Loop(ball, tmp_path).train()


def test_the_count_of_failures_is_kept_over_a_resume(ball, tmp_path):
    loop = Loop(ball, tmp_path)
    loop.evaluations.load_state_dict({"failures": 4})
    assert loop.evaluations.state_dict() == {"failures": 4}


def test_what_is_not_due_does_not_happen(ball, tmp_path):
    loop = Loop(ball, tmp_path, evaluate_at=0, mesh_at=0, poses_at=0).train()
    assert read_history(loop.folder)["Eval/mae"].values.shape == (1,)
    assert [path.name for path in (loop.folder / "meshes_validation").iterdir()] == ["iter_00000120.ply"]


def test_an_evaluation_that_runs_out_of_memory_is_made_in_parts(ball, tmp_path, unseen, monkeypatch):
    made = views_module._blended
    most = []

    def blended(model, rays, *others):
        most.append(len(rays.near))
        if len(most) == 1:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return made(model, rays, *others)

    monkeypatch.setattr(views_module, "_blended", blended)
    loop = Loop(ball, tmp_path).train()
    assert same(loop, unseen)
    assert (loop.evaluations.failures, loop.evaluations.micro_batches.count) == (0, 2)
    (event,) = (event for event in read_events(tmp_path) if event["kind"] == "out_of_memory")
    assert (event["what"], event["before"], event["after"]) == ("evaluation", 1, 2)


def test_a_mesh_in_smaller_blocks_is_the_same_surface(ball):
    config = ball.config()
    model = ball.model(config, ball.scene(config))
    whole, parts = (find_surface(model, 24, block=block).mesh for block in (64, 8))
    assert len(parts.faces) == len(whole.faces) > 0
    corners = [np.unique(mesh.vertices.round(6), axis=0) for mesh in (whole, parts)]
    assert np.array_equal(*corners)


def test_pictures_have_an_interval_of_their_own(ball, tmp_path):
    """Between evaluations, without metrics, and without disturbing the training."""
    loop = Loop(ball, tmp_path / "run", evaluate_at=0, mesh_at=0, poses_at=0, pictures_at=30).train()
    iterations = sorted({path.name[:8] for path in (tmp_path / "run" / "normals").glob("*.png")})
    assert iterations == ["00000030", "00000060", "00000090", "00000120"]
    depths = sorted({path.name[:8] for path in (tmp_path / "run" / "depths").glob("*.npy")})
    assert depths == iterations
    assert len(read_history(tmp_path / "run")["Eval/mae"]) == 1  # at the end
    plain = Loop(ball, tmp_path / "plain").train(validated=False)
    assert all(torch.equal(a, b) for a, b in zip(loop.states, plain.states, strict=True))
