"""Record of an evaluation: in the history, in the sinks, and as a table."""

import csv
from dataclasses import dataclass, field

import orjson
import pytest
import torch

from fieldwatch import Declared, Outputs, Run, Terms
from fieldwatch.recon.pipelines.splats.evaluation import evaluate
from fieldwatch.recon.pipelines.splats.evaluation_record import record_evaluation, worst_views, write_table
from fieldwatch.recon.pipelines.splats.exposure import Exposures
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS
from fieldwatch.record import TOOLKIT, read_history


@dataclass
class ImageSink:
    """A sink that stores its images."""

    images: list = field(default_factory=list)

    def __call__(self, block):
        pass

    def image(self, name, step, png, width, height):
        self.images.append((name, step, png[:4], width, height))


def recorded(folder, scene, model, sink, at):
    """Run three steps with an evaluation after one of them."""
    weight = torch.nn.Parameter(torch.ones(2))
    optimizer = torch.optim.SGD([weight], lr=0.1)
    with Run(folder, declared=Declared(metrics=TOOLKIT + SPLATS_METRICS), outputs=Outputs(sinks=[sink])) as run:
        run.track(groups={"weights": {"a": weight}})
        for step in run.steps(3):
            terms = Terms(rendering=(1.0, weight.square().sum()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer)
            if step.index + 1 == at:
                shown = evaluate(model, scene)
                record_evaluation(run, shown, scene, at)
    return shown


def test_it_is_recorded_at_the_number_of_finished_steps(tiny_scene, tiny_model, tmp_path):
    sink = ImageSink()
    shown = recorded(tmp_path, tiny_scene, tiny_model, sink, 2)
    history = read_history(tmp_path)
    for name, value in shown.metrics.items():
        series = history[name]
        assert list(series.positions) == [2]
        assert list(series.values) == pytest.approx([value])
    names = [name for name, *_ in sink.images]
    assert names == ["Test/worst_views", "Test/depth", "Test/normals"]
    assert {(step, kind) for _, step, kind, *_ in sink.images} == {(2, b"\x89PNG")}
    assert sink.images[1][3:] == (40, 40)


def test_the_table_has_a_row_per_view_and_metrics_are_the_newest(tiny_scene, tiny_model, tmp_path):
    tiny_model.exposures = Exposures([tiny_scene.photos.names[i] for i in tiny_scene.photos.train])
    shown = evaluate(tiny_model, tiny_scene)
    for position in (5, 10):
        table = write_table(tmp_path, shown, position)
    assert table.name == "step_10.csv"
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == ["view_000.png", "view_003.png", "view_006.png"]
    assert [float(row["psnr_fitted"]) for row in rows] == [row.psnr_fitted for row in shown.rows]
    assert {row["lpips"] for row in rows} == {""}
    newest = orjson.loads((tmp_path / "metrics.json").read_bytes())
    assert (newest["step"], newest["views"], newest["held_out"]) == (10, 3, True)
    assert newest["metrics"] == shown.metrics


def test_the_worst_views_are_one_picture(tiny_scene, tiny_model):
    picture = worst_views(evaluate(tiny_model, tiny_scene), tiny_scene)
    assert picture.shape == (3 * (40 + 36) + 8, 3 * 40 + 8, 3)
