import io
import json
import math
import sqlite3
import struct
import sys
import time
import zlib

import pytest
from PIL import Image

from fieldwatch.record.sinks import MissingExtra, MLflow, Trackio, Wandb, verdict_facts
from fieldwatch.report.imports import choose_run, find_runs

FINDING = {
    "kind": "finding",
    "rule": "LossSpike",
    "step": 7,
    "severity": "warning",
    "message": "High.",
    "remedy": "Mend.",
}

wandb_records = pytest.importorskip(
    "wandb.proto.wandb_internal_pb2", reason="the extra fieldwatch[wandb] is not installed"
)


@pytest.mark.parametrize(("extra", "sink"), [("wandb", Wandb), ("mlflow", MLflow), ("trackio", Trackio)])
def test_missing_extra_says_how_to_install_it(tmp_path, monkeypatch, extra, sink):
    monkeypatch.setitem(sys.modules, extra, None)
    with pytest.raises(MissingExtra, match=rf"pip install 'fieldwatch\[{extra}\]'"):
        sink(str(tmp_path / "absent"))


def records(path):
    """Parse wandb's file (LevelDB log format: blocks of 32 KiB; each record has a CRC-32, a length and a type)."""
    data = path.read_bytes()
    at = 7
    parts = b""
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        left = 32768 - at % 32768
        if left < 7:
            at += left
            continue
        crc, length, kind = struct.unpack_from("<IHB", data, at)
        body = data[at + 7 : at + 7 + length]
        assert zlib.crc32(body, zlib.crc32(bytes([kind]))) == crc
        parts += body
        at += 7 + length
        if kind in (1, 4):
            yield wandb_records.Record.FromString(parts)
            parts = b""


def history(folder, name):
    """Return (axis position, value) pairs of a metric over all offline segments."""
    found = []
    for path in sorted(folder.glob("wandb/offline-run-*/*.wandb")):
        for record in records(path):
            if record.WhichOneof("record_type") == "history":
                items = {
                    "/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in record.history.item
                }
                if name in items:
                    found.append((items.get("epoch", items.get("step")), items[name]))
    return found


def summary(folder, name):
    """Return a value of the summary; of several, the last one."""
    items = [
        item
        for path in sorted(folder.glob("wandb/offline-run-*/*.wandb"))
        for record in records(path)
        if record.WhichOneof("record_type") == "summary"
        for item in record.summary.update
    ]
    found = {"/".join(item.nested_key) or item.key: json.loads(item.value_json) for item in items}
    return found[name]


def png(shade):
    out = io.BytesIO()
    Image.new("L", (5, 4), shade).save(out, "PNG")
    return out.getvalue()


@pytest.fixture
def offline(monkeypatch):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_DISABLE_GIT", "true")
    monkeypatch.setenv("WANDB_DISABLE_CODE", "true")


def test_wandb_offline_holds_each_step_once_over_a_resume(tmp_path, make_block, offline):
    wandb = pytest.importorskip("wandb")
    sink = Wandb(tmp_path, project="test", mode="offline")
    sink(make_block(0, 40, ("Loss/total", "Guard/refused")))
    sink.image("render", 39, png(9), 5, 4)
    sink.event(FINDING)
    sink.event({"kind": "phase", "step": 3})
    mark = json.loads(json.dumps(sink.mark()))
    late = make_block(40, 50, ("Loss/total", "new"))
    late.values[0, 1] = math.nan
    sink(late)
    sink.config({"lr": 0.1}, {"psnr": 30.0})
    sink.rewind(mark)
    sink(make_block(40, 52, ("Loss/total",)))
    sink.close()
    wandb.teardown()  # a resumed run is another process with another wandb service
    while time.strftime("%Y%m%d_%H%M%S") in str(sorted(tmp_path.glob("wandb/offline-run-*"))):
        time.sleep(0.05)  # wandb names its folder after the current second
    again = Wandb(tmp_path, project="test", mode="offline")
    again.rewind(mark)
    for position in (39, 59):
        again.image("render", position, png(position), 5, 4)
    again(make_block(40, 60, ("Loss/total",)))
    again(make_block(60, 61, ("Eval/psnr",), axis="epoch", positions=[2]))
    again.verdict(verdict_facts("running", ()))
    again.verdict(verdict_facts("finished", ("note", "warning", "note")))
    again.close()
    wandb.teardown()  # finish() returns before the service has written the file
    assert len(list(tmp_path.glob("wandb/offline-run-*"))) == 2
    assert history(tmp_path, "Loss/total") == [(step, step) for step in range(60)]
    assert history(tmp_path, "Eval/psnr") == [(2, 60)]
    assert history(tmp_path, "Guard/refused") == []
    assert [step for step, kind in history(tmp_path, "render/_type") if kind == "image-file"] == [39, 59]
    assert len(list(tmp_path.glob("wandb/offline-run-*/files/media/images/*.png"))) == 2
    assert summary(tmp_path, "Findings/LossSpike") == "warning at step 7: High. Mend."
    assert (summary(tmp_path, "Verdict/level"), summary(tmp_path, "Verdict/state")) == ("findings", "finished")
    assert [summary(tmp_path, f"Verdict/{kind}") for kind in ("errors", "warnings", "notes")] == [0, 1, 2]
    assert math.isnan(history(tmp_path, "new")[0][1])
    assert len({path.stem for path in tmp_path.glob("wandb/offline-run-*/*.wandb")}) == 1


@pytest.mark.filterwarnings("ignore:The ``noload`` loader strategy")  # of SQLAlchemy, in mlflow's own tables
def test_mlflow_holds_each_step_once_over_a_resume(tmp_path, make_block):
    mlflow = pytest.importorskip("mlflow", reason="the extra fieldwatch[mlflow] is not installed")
    store = f"sqlite:///{tmp_path}/new/mlflow.db"
    sink = MLflow(store, experiment="bear", name="first", clock=lambda: 1000.0)
    sink(make_block(0, 40, ("Loss/total", "Guard/refused", "odd<name>")))
    sink.image("Eval/odd<view>", 39, png(9), 5, 4)
    sink.event(FINDING)
    sink.event({"kind": "phase", "step": 3})
    mark = json.loads(json.dumps(sink.mark()))
    late = make_block(40, 50, ("Loss/total", "new"))
    late.values[0, 1] = math.nan
    sink(late)
    sink(make_block(49, 50, ("Eval/psnr",)))
    sink.config({"lr": 0.1, "views": (1, 2)}, {})
    again = MLflow(store, experiment="bear")
    again.rewind(mark)
    for position in (39, 59):
        again.image("Eval/odd<view>", position, png(position), 5, 4)
    again(make_block(40, 700, ("Loss/total", "second")))
    again(make_block(60, 61, ("Eval/epoch",), axis="epoch", positions=[2]))
    again.config({"lr": 0.2, "later": True}, {"psnr": 30.0})
    again.verdict(verdict_facts("running", ()))
    again.verdict(verdict_facts("diverged", ("error",)))
    again.close()
    client = mlflow.MlflowClient(store)

    def told(name):
        return [(metric.step, metric.value) for metric in client.get_metric_history(mark["run"], name)]

    assert told("Loss/total") == [(step, step) for step in range(700)]
    assert told("Eval/psnr") == [(49, 49)]
    assert told("Eval/epoch") == [(2, 60)]
    found = choose_run(find_runs(tmp_path / "new"), tmp_path, None).read(False)
    assert [(picture.name, picture.step) for picture in found.pictures()] == [
        ("Eval/odd_view_", 39),
        ("Eval/odd_view_", 59),
    ]
    tags = client.get_run(mark["run"]).data.tags
    assert tags["finding.LossSpike"] == "warning at step 7: High. Mend."
    verdict = {name.removeprefix("verdict."): value for name, value in tags.items() if name.startswith("verdict.")}
    assert verdict == {"level": "failed", "state": "diverged", "errors": "1", "warnings": "0", "notes": "0"}
    assert told("Final/psnr") == [(699, 30)]
    assert len(told("odd_name_")) == 40
    assert math.isnan(told("new")[0][1])
    assert told("Guard/refused") == []
    run = client.get_run(mark["run"])
    assert run.data.params == {"lr": "0.1", "views": "(1, 2)", "later": "True"}
    assert run.info.status == "FINISHED"
    assert client.get_metric_history(mark["run"], "Loss/total")[1].timestamp == 1000_000 - 19_000
    fresh = MLflow(store, experiment="bear")
    fresh.rewind(None)
    assert fresh.mark() != mark


@pytest.fixture
def trackio(monkeypatch, tmp_path):
    """The real package, with a folder of its own."""
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    utils = pytest.importorskip("trackio.utils", reason="the extra fieldwatch[trackio] is not installed")
    if tmp_path != utils.TRACKIO_DIR:
        # Its modules have copied the folder of an earlier import.
        for module in [name for name in sys.modules if name.split(".")[0] == "trackio"]:
            monkeypatch.delitem(sys.modules, module)
    return tmp_path


def test_trackio_holds_each_step_once_over_a_resume(trackio, make_block, capsys):
    sink = Trackio(trackio / "unused", project="bear")
    sink.config({"lr": 0.1, "_private": 1}, {})
    sink(make_block(0, 40, ("Loss/total", "Guard/refused")))
    sink.image("Eval/view", 39, png(9), 5, 4)
    sink.event(FINDING)
    sink.event({"kind": "phase", "step": 3})
    mark = json.loads(json.dumps(sink.mark()))
    late = make_block(40, 50, ("Loss/total", "new"))
    late.values[0, 1] = math.nan
    sink(late)
    sink.close()
    again = Trackio(trackio, project="bear")
    again.rewind(mark)
    again.config({"lr": 0.1}, {})
    for position in (39, 59):
        again.image("Eval/view", position, png(position), 5, 4)
    again(make_block(40, 60, ("Loss/total",)))
    again(make_block(60, 61, ("Eval/psnr",), axis="epoch", positions=[2]))
    again.verdict(verdict_facts("running", ()))
    again.verdict(verdict_facts("finished", ("note", "warning", "note")))
    again.config({"lr": 0.1}, {"psnr": 30.0})
    again.close()
    assert capsys.readouterr().out == ""
    found = choose_run(find_runs(trackio), trackio, None).read(False)
    assert found.config == {"lr": 0.1}
    told = {name: (series.positions.tolist(), series.values.tolist()) for name, series in found.series.items()}
    assert told["Loss/total"] == (list(range(60)), list(range(60)))
    assert (told["Eval/psnr"], told["epoch"], told["Final/psnr"]) == (([60], [60]), ([60], [2]), ([60], [30]))
    assert math.isnan(told["new"][1][0])
    assert "Guard/refused" not in told
    assert len(list((trackio / "media").rglob("*.png"))) == 2
    with sqlite3.connect(trackio / "bear.db") as database:
        alerts = database.execute("SELECT title, text, level, step FROM alerts ORDER BY id").fetchall()
    assert [(title, level, step) for title, _, level, step in alerts] == [
        ("LossSpike", "warn", 7),
        ("Verdict", "info", 60),
        ("Verdict", "warn", 60),
    ]
    assert "warnings: 1, notes: 2" in alerts[-1][1]
    # Of a run that has the same name, nothing is skipped.
    fresh = Trackio(trackio, project="bear", name=mark["name"])
    fresh.rewind(None)
    assert (fresh.mark()["name"], fresh.mark()["id"] == mark["id"]) == (mark["name"], False)
    fresh(make_block(0, 3, ("Loss/total",)))
    fresh.close()
    assert [len(run.read(False).series["Loss/total"].values) for run in find_runs(trackio)] == [60, 3]
