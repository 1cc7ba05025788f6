"""Accounts of synthetic runs in every state."""

import base64
import json
from dataclasses import replace

import numpy as np
import orjson
import pytest

from fieldwatch.base import number
from fieldwatch.health import Finding
from fieldwatch.record import History, Metric, NotARun, read_history, read_manifest
from fieldwatch.record.sinks import TensorBoard
from fieldwatch.report.account import account_from, account_of

FIXED = [
    "losses", "gradients", "conflicts", "memory", "timing", "quality", "distributions", "growth", "checkpoints",
    "events", "config", "environment",
]  # fmt: skip
KINDS = {"lines", "stack", "table", "images", "facts", "text", "empty", "group", "histogram"}


def panel(account, identity):
    return next(one for one in account["panels"] if one["id"] == identity)


def part(account, identity, title):
    return next(one for one in panel(account, identity)["parts"] if one["title"] == title)


def everything(panels):
    for one in panels:
        yield one
        yield from everything(one.get("parts", ()))


def check(account):
    """Assert that an account is valid JSON, has all fixed panels, and refers only to series that it contains."""
    assert json.loads(orjson.dumps(account)) == json.loads(json.dumps(account))
    assert [one["id"] for one in account["panels"]][: len(FIXED)] == FIXED
    parts = list(everything(account["panels"]))
    identities = [one["id"] for one in parts]
    assert len(set(identities)) == len(identities)
    for one in parts:
        assert one["kind"] in KINDS
        assert one["title"]
        assert set(one.get("series", ())) <= account["series"].keys()
        assert one["kind"] != "empty" or one["why"]
        keys = {key for row in one.get("rows", ()) for key in row}
        assert {column["key"] for column in one.get("columns", ())} <= keys
    for series in account["series"].values():
        assert len(series["x"]) == len(series["y"])
        assert series["x"] == sorted(series["x"])
    return account


def finding(step, rule="LossSpike", severity="warning", **more):
    told = {"rule": rule, "step": step, "severity": severity, "message": f"Loss/total was {step}.", "remedy": "Look."}
    return Finding(**told | more).as_event()


def test_a_finished_run_without_findings_is_healthy(run_folder, rows):
    folder = run_folder(rows.block(rows.training(300)), events=[{"kind": "plan", "step": 0, "steps": 300}])
    account = check(account_of(folder))
    assert account["verdict"]["level"] == "healthy"
    assert "300 of 300 steps" in account["verdict"]["title"]
    assert "Loss/total went from" in account["verdict"]["detail"]
    run = account["run"]
    assert (run["state"], run["first_step"], run["last_step"], run["rows"], run["steps_planned"]) == (
        "finished", 0, 299, 300, 300,
    )  # fmt: skip
    assert run["resume"] == ""
    assert account["crash"] is None
    assert run["segments"][0]["command"] == "train.py --out 'a b'"


def test_findings_come_worst_first_and_repetitions_are_joined(run_folder, rows):
    events = [
        finding(10, severity="note", rule="StepOutlier", message="slow"),
        finding(63),
        finding(200),
        finding(250, rule="NonFinite", severity="error", subject="color", message="not finite"),
    ]
    account = check(account_of(run_folder(rows.block(rows.training(300)), events=events)))
    told = [(one["rule"], one["step"], one["last_step"], one["count"]) for one in account["findings"]]
    assert told == [("NonFinite", 250, 250, 1), ("LossSpike", 63, 200, 2), ("StepOutlier", 10, 10, 1)]
    assert [one["metrics"] for one in account["findings"]] == [["Loss/component_color"], ["Loss/total"], ["Time/step"]]
    assert account["verdict"]["level"] == "findings"
    assert "1 error, 1 warning, 1 note" in account["verdict"]["title"]
    assert account["verdict"]["detail"].startswith("NonFinite at step 250: not finite Look.")


def test_notes_alone_leave_a_run_healthy(run_folder, rows):
    account = account_of(run_folder(rows.block(rows.training(50)), events=[finding(10, severity="note")]))
    assert account["verdict"]["level"] == "notes"
    assert account["verdict"]["title"].startswith("Healthy")


def test_the_callers_findings_take_the_place_of_those_on_record(run_folder, rows):
    folder = run_folder(rows.block(rows.training(50)), events=[finding(10)])
    account = account_from(read_history(folder), folder, findings=())
    assert account["verdict"]["level"] == "healthy"


def test_shares_are_on_the_same_steps_and_add_up_to_one(run_folder, rows):
    columns = rows.training(2_000)
    folder = run_folder(rows.block(columns), rows.block({"Loss/share_late": np.full(500, 1.0)}, first=2_000))
    account = check(account_of(folder))
    stack = part(account, "losses", "Shares of the terms")
    assert stack["kind"] == "stack"
    series = [account["series"][name] for name in stack["series"]]
    assert len({tuple(one["x"]) for one in series}) == 1
    np.testing.assert_allclose(np.sum([one["y"] for one in series], axis=0), 1, atol=1e-5)


def test_clipping_tells_how_often_and_how_hard_it_acted(run_folder, rows):
    scale = np.ones(100)
    scale[10:30] = 0.5
    scale[40] = 0.125
    scale[50] = np.nan  # refused
    scale[60] = 0.01  # refused because of its loss: nothing was applied
    refused = np.zeros(100)
    refused[[50, 60]] = 1
    more = {"Gradients/clip_scale": scale, "Gradients/net_clip_scale": np.ones(100), "Guard/refused": refused}
    account = check(account_of(run_folder(rows.block(rows.training(100) | more))))
    assert part(account, "gradients", "Clipping")["series"] == ["Gradients/clip_scale", "Gradients/net_clip_scale"]
    total, net = part(account, "gradients", "Clipped steps")["rows"]
    assert total == {
        "gradients": "all gradients", "steps": 98, "share": pytest.approx(100 * 21 / 98, rel=1e-5), "median": 0.5,
        "least": 0.125, "at": 40,
    }  # fmt: skip
    assert (net["gradients"], net["steps"], net["share"]) == ("net", 98, 0.0)


def test_a_run_that_does_not_clip_has_no_charts_of_clipping(run_folder, rows):
    account = account_of(run_folder(rows.block(rows.training(40))))
    assert [one["title"] for one in panel(account, "gradients")["parts"]] == ["Norms"]


def test_the_change_of_the_loss_does_not_depend_on_how_many_points_are_drawn(run_folder, rows):
    # Every eighth step is a spike, which thinning keeps: most drawn points are spikes or the lowest of their bucket.
    loss = np.where(np.arange(6000) % 8 == 3, 5.0, 1.0 + 0.1 * np.random.default_rng(1).random(6000))
    folder = run_folder(rows.block({"Loss/total": loss}))
    details = {account_of(folder, budget=budget)["verdict"]["detail"] for budget in (2_000, 2_000_000)}
    assert len(details) == 1
    assert f"to {number(float(np.median(loss[-300:])))} (lowest {number(loss.min())}" in details.pop()


def test_nothing_recorded_is_out_of_sight(run_folder, rows):
    more = {"Odd": np.arange(40.0), "Stats/a_mean": np.arange(40.0), "Stats/b_mean": np.arange(40.0)}
    more |= {"Eval/psnr": np.arange(40.0), "Eval/constant": np.ones(40), "x/<script>/y": np.ones(40)}
    account = check(account_of(run_folder(rows.block(rows.training(40) | more))))
    shown = {name for one in everything(account["panels"]) for name in one.get("series", ())}
    listed = {row["metric"] for row in part(account, "quality", "Metrics")["rows"]}
    assert account["series"].keys() <= shown | listed
    assert part(account, "more-stats", "mean")["series"] == ["Stats/a_mean", "Stats/b_mean"]


def test_histograms_are_drawn_with_their_quantiles_over_the_run(run_folder, rows):
    epochs = rows.block({"Eval/psnr": [20.0, 30.0]}, first=31, axis="epoch", positions=[1, 2])
    folder = run_folder(rows.block(rows.training(40)), epochs)
    catalogue = (
        Metric(name="Eval/psnr", unit="dB", meaning="How alike.", axis="epoch"),
        Metric(name="Eval/frames", unit="dB", meaning="Of each frame.", axis="epoch", kind="histogram"),
    )
    replace(read_manifest(folder), metrics=catalogue).write(folder)
    board = TensorBoard(folder / "tensorboard")
    for epoch, level in ((1, 20.0), (2, 30.0)):
        board.histogram("Eval/frames", epoch, level + np.linspace(-1, 1, 61))
    board.histogram("scales", 12, np.full(5, 2.0))
    board.close()
    account = check(account_of(folder))
    frames, quantiles, scales = panel(account, "distributions")["parts"]
    assert (frames["kind"], frames["title"], frames["unit"]) == ("histogram", "Eval/frames", "dB")
    assert "61 values, epoch 2 (step 32)" in frames["about"]
    assert "Of each frame." in frames["about"]
    assert (frames["edges"][0], frames["edges"][-1], sum(frames["counts"])) == (29.0, 31.0, 61)
    medians = account["series"]["Eval/frames/median"]
    assert quantiles["labels"]["Eval/frames/median"] == "median"
    assert (medians["x"], medians["epochs"], medians["unit"]) == ([31, 32], [1, 2], "dB")
    assert medians["y"] == pytest.approx([20, 30], abs=0.1)
    assert account["series"]["Eval/frames/minimum"]["y"] == pytest.approx([19, 29])
    # One value only, of which no histogram has a width: a single bar.
    assert (len(scales["counts"]), scales["counts"][0]) == (1, 5)
    assert "step 12" in scales["about"]


def test_quantiles_are_no_quality_metrics(run_folder, rows):
    folder = run_folder(rows.block(rows.training(40) | {"Eval/psnr": np.arange(40.0)}))
    board = TensorBoard(folder / "tensorboard")
    for step in (10, 20):
        board.histogram("Eval/frames", step, np.arange(10.0))
    board.close()
    account = check(account_of(folder))
    assert [row["metric"] for row in part(account, "quality", "Metrics")["rows"]] == ["Eval/psnr"]
    assert account["series"]["Eval/frames/maximum"]["x"] == [10, 20]


def test_bookkeeping_of_the_batch_is_no_series_but_a_table(run_folder, rows):
    names = [f"view_{step % 20}" for step in range(200)]
    losses = {"Loss/total": np.array([9.0 if name == "view_7" else 1.0 for name in names])}
    losses["Sample/0/loss"] = losses["Loss/total"]
    account = check(account_of(run_folder(rows.block(losses, samples=[(name,) for name in names]))))
    assert "Sample/0/loss" not in account["series"]
    lines = part(account, "quality", "Worst samples in training")["rows"]
    assert lines[0] == {"sample": "view_7", "loss": 9.0, "visits": 10, "last": 187}
    assert len(lines) == 12


def test_an_empty_folder_of_a_run_says_so(run_folder):
    account = check(account_of(run_folder(state="running")))
    assert account["verdict"]["level"] == "empty"
    assert account["run"]["last_step"] is None
    assert account["run"]["rows"] == 0
    assert {one["kind"] for one in account["panels"]} <= {"empty", "facts"}


def test_one_row_is_enough(run_folder, rows):
    account = check(account_of(run_folder(rows.block(rows.training(1)))))
    assert account["verdict"]["level"] == "healthy"
    assert account["series"]["Loss/total"]["x"] == [0]


def test_a_row_that_is_not_finite_is_enough(run_folder, rows):
    columns = {name: np.full(3, np.nan) for name in (*rows.training(1), "Memory/peak_MB", "Eval/psnr")}
    account = check(account_of(run_folder(rows.block(columns))))
    assert account["series"]["Loss/total"]["bad"] == [0, 1, 2]


def test_a_torn_last_line_is_passed_over(run_folder, rows):
    folder = run_folder(rows.block(rows.training(50)))
    with (folder / "journal.jsonl").open("ab") as file:
        file.write(b'[0,50,0.5,50,[],1.0,"na')
    assert account_of(folder)["run"]["last_step"] == 49


def test_a_resumed_run_tells_its_starts(run_folder, rows):
    starts = (rows.segment(), rows.segment(step=200, command=["train.py"]))
    account = check(account_of(run_folder(rows.block(rows.training(300)), segments=starts)))
    assert [(one["number"], one["resume"]) for one in account["run"]["segments"]] == [(1, 0), (2, 200)]
    assert [(one["kind"], one["step"]) for one in account["marks"]] == [("resume", 200)]


def test_phases_come_from_the_manifest_or_from_events(run_folder, rows):
    declared = run_folder(rows.block(rows.training(9)), phases=(("warm-up", 0, 4), ("rest", 5, None)), name="declared")
    assert account_of(declared)["phases"] == [
        {"name": "warm-up", "first": 0, "last": 4},
        {"name": "rest", "first": 5, "last": None},
    ]
    events = [{"kind": "phase", "step": 0, "name": "a"}, {"kind": "phase", "step": 5, "name": "b"}]
    assert account_of(run_folder(rows.block(rows.training(9)), events=events))["phases"] == [
        {"name": "a", "first": 0, "last": 4},
        {"name": "b", "first": 5, "last": None},
    ]


def test_frequent_marks_are_thinned_and_rare_ones_stay(run_folder, rows):
    events = [{"kind": "refusal", "step": step, "terms": ["color"]} for step in range(3_000)]
    events += [{"kind": "rolled_back", "step": 77, "to": 50}]
    account = check(account_of(run_folder(rows.block(rows.training(3_000)), events=events)))
    refusals = [mark for mark in account["marks"] if mark["kind"] == "refusal"]
    assert len(account["marks"]) <= 600
    assert len(refusals) > 400
    assert {mark["count"] for mark in refusals} == {3_000}
    assert (refusals[0]["step"], refusals[-1]["step"]) == (0, 2_999)
    assert [mark["step"] for mark in account["marks"] if mark["kind"] == "rolled_back"] == [77]
    assert "refusal 3,000" in panel(account, "events")["about"]
    assert len(panel(account, "events")["rows"]) <= 400


def test_events_have_words_for_readers_and_leave_out_what_only_rules_read(run_folder, rows):
    events = [{"kind": "plan", "step": 0, "steps": 9}, {"kind": "frozen_share", "step": 0, "share": 0.5}]
    events += [{"kind": "checkpoint_failed", "step": 4, "reason": "disk full", "failures": 1}]
    account = check(account_of(run_folder(rows.block(rows.training(9)), events=events)))
    told = panel(account, "events")
    assert told["rows"] == [{"step": 4, "kind": "checkpoint failed", "text": "disk full"}]
    assert told["about"] == "checkpoint failed 1"
    assert [mark["title"] for mark in account["marks"]] == ["checkpoint failed"]


def test_checkpoints_tell_which_is_best_and_which_are_on_disk(run_folder, rows):
    events = [
        {"kind": "checkpoint", "step": step, "path": f"checkpoints/s{step}", "metrics": {"psnr": psnr}}
        | {"stall_ms": 1.5, "took_ms": 20.0}
        for step, psnr in ((9, 20.0), (19, 30.0), (29, 25.0))
    ]
    folder = run_folder(rows.block(rows.training(30)), events=events)
    (folder / "checkpoints/s29").mkdir(parents=True)
    (folder / "checkpoints/s29/tensors.safetensors").write_bytes(bytes(2**20))
    account = check(account_of(folder))
    lines = {row["step"]: row for row in panel(account, "checkpoints")["rows"]}
    assert [lines[step]["rank"] for step in (9, 19, 29)] == ["", "best", "last"]
    assert (lines[29]["kept"], lines[29]["size"], lines[9]["kept"]) == ("yes", 1.0, "no")
    assert account["series"]["Checkpoint/stall_ms"]["y"] == [1.5, 1.5, 1.5]


def test_changed_settings_come_first(run_folder, rows):
    config = {"batch": 4, "net": {"width": 64}, "lr": 0.1}
    folder = run_folder(rows.block(rows.training(9)), config=config, preset_difference={"net.width": (32, 64)})
    lines = panel(account_of(folder), "config")["rows"]
    assert lines[0] == {"key": "net.width", "value": "64", "preset": "32", "changed": True}
    assert [row["changed"] for row in lines] == [True, False, False]


def test_growth_is_told_by_its_ledger(run_folder, rows):
    growth = {"kind": "growth", "step": 20, "before": 100, "after": 150, "cloned": 50, "added": 50, "removed": 0}
    account = check(account_of(run_folder(rows.block(rows.training(60)), events=[growth])))
    assert account["series"]["Growth/size"]["y"] == [150.0]
    assert part(account, "growth", "Ledger")["rows"][0]["cloned"] == 50
    assert account["marks"] == [{"kind": "growth", "step": 20, "title": "growth", "text": "50 added, 50 cloned"}]


def test_a_ledger_that_cannot_be_made_is_no_reason_to_show_nothing(run_folder, rows):
    growth = {"kind": "growth", "step": 20, "before": "many"}
    told = panel(check(account_of(run_folder(rows.block(rows.training(60)), events=[growth]))), "growth")
    assert told["kind"] == "empty"
    assert "before to be an integer" in told["why"]


def test_memory_is_told_by_component(run_folder, rows):
    memory = {"Memory/peak_MB": np.arange(50.0), "Memory/capacity_MB": np.full(50, 100.0)}
    memory["TensorProfiling/Component/net_MB"] = np.full(50, 7.0)
    folder = run_folder(rows.block(rows.training(50) | memory))
    owners = {"parameters": {"net": 2**20}, "optimizer": {"net": 2**21, "head": 2**19}}
    large = {"owner": "net", "kind": "parameters", "name": "weight", "bytes": 2**20, "shape": [512, 512], "views": 1}
    census = {"step": 49, "allocated": 2**22, "reserved": 2**23, "owners": owners, "large": [large]}
    (folder / "memory.jsonl").write_bytes(orjson.dumps(census) + b"\n")
    account = check(account_of(folder))
    assert part(account, "memory", "By component")["series"] == ["TensorProfiling/Component/net_MB"]
    lines = part(account, "memory", "Components at the end")["rows"]
    assert lines == [
        {"component": "net", "all": 3.0, "parameters": 1.0, "optimizer": 2.0},
        {"component": "head", "all": 0.5, "optimizer": 0.5},
    ]
    (tensor,) = part(account, "memory", "Largest tensors at the end")["rows"]
    assert (tensor["owner"], tensor["shape"], tensor["size"]) == ("net", "[512, 512]", 1.0)
    facts = {one["name"]: one["value"] for one in part(account, "memory", "In short")["facts"]}
    assert facts["peak"] == "49.0 MiB in step 49"
    assert facts["left at the peak"] == "51.0 MiB (51%)"


def test_several_ranks_stand_side_by_side(run_folder, rows):
    folder = run_folder(rows.block(rows.training(20)))
    rank = run_folder(rows.block(rows.training(20)), name="1")
    (folder / "ranks").mkdir()
    rank.rename(folder / "ranks/1")
    lines = panel(check(account_of(folder)), "ranks")["rows"]
    assert [(row["rank"], row["step"]) for row in lines] == [(0, 19), (1, 19)]


def test_epochs_stand_on_the_steps_and_keep_their_numbers(run_folder, rows):
    epochs = rows.block({"Train/PSNR": [20.0, 21.0]}, first=31, axis="epoch", positions=[1, 2])
    told = account_of(run_folder(epochs))["series"]["Train/PSNR"]
    assert (told["axis"], told["x"], told["epochs"]) == ("step", [31, 32], [1, 2])


def test_a_callers_metrics_explain_a_strangers_names(run_folder, rows):
    folder = run_folder(rows.block({"Own/speed": np.arange(5.0)}))
    metric = Metric(name="Own/speed", unit="m/s", meaning="How fast.", better="higher")
    told = account_from(read_history(folder), folder, metrics=[metric])["series"]["Own/speed"]
    assert (told["unit"], told["meaning"], told["better"]) == ("m/s", "How fast.", "higher")


def test_the_worst_views_are_those_of_the_newest_table(run_folder, rows):
    folder = run_folder(rows.block(rows.training(9)))
    (folder / "evaluations").mkdir()
    lines = "".join(f"{number:03d},{30 - number % 7}.5\n" for number in range(40))
    (folder / "evaluations/step_9.csv").write_text(f"name,psnr\n{lines}nan_view,nan\n")
    told = part(check(account_of(folder)), "quality", "Worst views")
    assert told["rows"][0] == {"name": "006", "psnr": 24.5}
    assert len(told["rows"]) == 12
    assert "40 by psnr, of evaluations/step_9.csv" in told["about"]


def test_hostile_texts_stay_what_they_are(run_folder, rows):
    evil = "</script><b>\x1b[31m\u202e"
    events = [finding(3, message=evil, remedy=evil), {"kind": evil, "step": 1, "text": evil}]
    folder = run_folder(
        rows.block({f"Loss/component_{evil}": np.ones(5)}), events=events, name="a <i>run", config={evil: evil},
        about={"pipeline": {"not": "a name"}, evil: evil},
    )  # fmt: skip
    account = check(account_of(folder))
    assert account["findings"][0]["message"] == evil
    assert account["run"]["name"] == "a <i>run"
    assert account["run"]["pipeline"] is None


def test_a_manifest_of_strange_values_is_read_as_far_as_it_goes(run_folder, rows):
    odd = ({"step": "x", "command": 3}, {"step": None, "host": [1], "command": ["a", 2]}, {})
    events = [
        {"kind": "plan", "step": 0, "steps": "many"},
        {"kind": "checkpoint", "step": 3, "metrics": [1], "path": 7},
    ]
    account = check(account_of(run_folder(rows.block(rows.training(5)), segments=odd, events=events)))
    assert [one["command"] for one in account["run"]["segments"]] == ["", "a 2"]
    assert account["run"]["steps_planned"] is None


def test_a_name_that_is_no_utf8_can_be_written_as_json(run_folder, rows):
    folder = run_folder(rows.block(rows.training(5)))
    odd = folder.rename(folder.with_name("caf\udce9"))
    assert check(account_of(odd))["run"]["name"] == "caf\ufffd"


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="no run folder"):
        account_of(tmp_path / "nowhere")
    with pytest.raises(NotARun, match="holds no run"):
        account_of(tmp_path)


def test_many_long_series_keep_to_the_budget(run_folder, rows):
    random = np.random.default_rng(1)
    history = History(None)
    history.extend(rows.block({f"Stats/s{number}": random.normal(size=30_000) for number in range(40)}))
    account = account_from(history, run_folder())
    assert len(orjson.dumps(account)) < 2_600_000
    assert all(series["thinned"] for series in account["series"].values())
    shorter = account_from(history, run_folder(name="again"), budget=200_000)
    assert len(orjson.dumps(shorter)) < 300_000


def test_spikes_of_one_step_are_in_the_account_of_a_long_run_with_many_metrics(run_folder, rows):
    random = np.random.default_rng(5)
    columns = {f"Stats/s{number}": random.normal(1, 0.01, 40_000) for number in range(24)}
    planted = {name: random.choice(np.arange(0, 40_000, 2), 60, replace=False) for name in columns}
    for name, steps in planted.items():
        columns[name][steps] += random.choice([-1, 1], 60) * random.uniform(1, 1e3, 60)
    history = History(None)
    history.extend(rows.block(columns))
    account = account_from(history, run_folder(), budget=400_000)
    for name, steps in planted.items():
        points = dict(zip(account["series"][name]["x"], account["series"][name]["y"], strict=True))
        assert [points[step] for step in steps.tolist()] == pytest.approx(columns[name][steps], rel=5e-6)


def test_pictures_are_data_and_may_be_left_out(run_folder, png, rows):
    folder = run_folder(rows.block(rows.training(9)))
    (folder / "products").mkdir()
    (folder / "products/mesh.png").write_bytes(png(64, 48))
    (item,) = part(check(account_of(folder)), "quality", "Pictures")["items"]
    assert item["caption"] == "products/mesh.png, 64 x 48"
    assert base64.b64decode(item["src"].partition("base64,")[2])
    without = account_from(read_history(folder), folder, pictures=False)
    assert "Pictures" not in [one["title"] for one in panel(without, "quality").get("parts", ())]


def test_consequences_name_their_cause_and_the_verdict_tells_the_cause_alone(run_folder, rows):
    events = [
        finding(300, rule="LossJump", severity="error", message="the loss jumped"),
        finding(290, rule="RateJump", subject="0", message="the rate rose"),
        *(finding(300 + i, rule="SampleSpike", subject=f"view_{i}", message="a view") for i in range(5)),
    ]
    account = check(account_of(run_folder(rows.block(rows.training(400)), events=events)))
    told = [(one["rule"], one["count"], one["because_of"]) for one in account["findings"]]
    assert told == [
        ("RateJump", 1, ""),
        ("LossJump", 1, "RateJump [0] at step 290"),
        ("SampleSpike", 5, "RateJump [0] at step 290"),
    ]
    assert "the rate rose" in account["verdict"]["detail"]
    assert "the loss jumped" not in account["verdict"]["detail"]
