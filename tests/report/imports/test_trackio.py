"""A recorded Trackio project: values, config and damage."""

import json
import sqlite3

import pytest

from fieldwatch.report.imports import BadSource, find_runs


@pytest.fixture
def project(recorded, tmp_path):
    """The recorded database; it is kept as text."""
    path = tmp_path / "toy.db"
    with sqlite3.connect(path) as made:
        made.executescript(f"BEGIN;\n{(recorded / 'trackio.sql').read_text()}COMMIT;")
    made.close()
    return path


def test_a_run_is_read_with_its_config(project):
    (found,) = find_runs(project)
    run = found.read(False)
    assert (run.tool, run.name, run.config, run.notes) == ("Trackio", "toy-run", {"lr": 0.05}, ())
    assert run.series["train/loss"].steps.tolist() == [0, 10, 20, 30, 40, 50]
    assert run.series["train/loss"].values.tolist() == [1 / (1 + number) for number in range(6)]
    assert run.series["val/loss"].steps.tolist() == [20, 50]
    assert [path.name for path in project.parent.iterdir()] == [project.name]


def test_a_damaged_row_is_refused(project):
    with sqlite3.connect(project) as made:
        made.execute("UPDATE metrics SET metrics = '{\"train' WHERE step = 20")
    made.close()
    with pytest.raises(BadSource, match="JSON"):
        find_runs(project)[0].read(False)


def test_pictures_are_read_from_its_folder_only(project, tmp_path):
    inside = tmp_path / "media" / "toy" / "render.png"
    inside.parent.mkdir(parents=True)
    inside.write_bytes(b"picture")
    (tmp_path / "secret").write_bytes(b"secret")
    with sqlite3.connect(project) as made:
        for step, path in ((20, "toy/render.png"), (30, "../secret"), (40, "toy/missing.png")):
            values = json.dumps({"view": {"_type": "trackio.image", "file_path": path}})
            made.execute("UPDATE metrics SET metrics = ? WHERE step = ?", (values, step))
    made.close()
    found = find_runs(project)[0].read(False)
    assert [(picture.step, picture.content) for picture in found.pictures()] == [(20, b"picture"), (30, b""), (40, b"")]
