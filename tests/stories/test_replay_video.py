"""Any step of a run can be made again: a neural video, to the bit, and without touching the run."""

import hashlib
import json

START = 21
STEP = 42


def digest(folder):
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.rglob("*") if path.is_file()}


def test_twenty_steps_of_a_video_are_those_of_the_journal_to_the_bit(frames, tmp_path, finish, tiny):
    folder = tmp_path / "run"
    options = "--epochs 9 --eval-freq 2 --pixel-loss-warmup-epochs 2 --checkpoint-epochs 1 --keep-last 20".split()
    code, _, errors = finish("train", "video", "--data", frames, "--out", folder, *tiny, *options)
    assert code in (0, 1), errors  # so small a network may earn findings
    before = digest(folder)
    flags = ["--start", START, "--do", "lr*=0.1", "--without", "clip", "--dtype", "float64", "--json"]
    code, out, errors = finish("replay", folder, "--step", STEP, "--out", tmp_path / "seen", *flags)
    assert code == 0, errors
    found = json.loads(out)
    assert digest(folder) == before
    assert (tmp_path / "seen" / "replay.html").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".scratch")] == []

    equality = found["equality"]
    assert equality["equal"], equality
    assert (equality["first"], equality["last"]) == (START, STEP + 1)
    # Evaluations, which the replay leaves out, were due on the way, and so were checkpoints.
    assert {28, 35, STEP} <= {row["step"] for row in equality["checkpoints"]}
    assert equality["values"] > 20 * (STEP - START) / 2
    assert found["repeats"]["differing"] == []

    assert {row["group"] for row in found["terms"]["groups"]} >= {"decoder", "rgb_head", "clip_head"}
    assert all("loss" in row for row in found["samples"])
    plain, slower, without, double = found["passes"]
    assert [one["error"] for one in found["passes"]] == [None] * 4
    assert slower["losses"][0] == plain["losses"][0] != without["losses"][0]
    assert abs(double["losses"][0]["loss"] / plain["losses"][0]["loss"] - 1) < 1e-4


def test_a_run_of_a_pipeline_takes_no_script_arguments(frames, tmp_path, finish, tiny):
    folder = tmp_path / "run"
    options = "--epochs 1 --eval-freq 2 --checkpoint-epochs 1".split()
    code, _, errors = finish("train", "video", "--data", frames, "--out", folder, *tiny, *options)
    assert code in (0, 1), errors
    code, out, errors = finish("replay", folder, "--step", 6, "--out", tmp_path / "seen", "--", "--lr", "1")
    assert (code, out) == (2, ""), errors
    assert not (tmp_path / "seen").exists()


def test_checkpoints_are_kept_so_that_every_step_can_be_reached(frames, tmp_path, finish, tiny):
    folder = tmp_path / "run"
    options = (
        "--epochs 6 --eval-freq 6 --checkpoint-epochs 1 --keep-last 1 --keep-best 0 --replay-within 0.001s".split()
    )
    code, _, errors = finish("train", "video", "--data", frames, "--out", folder, *tiny, *options)
    assert code in (0, 1), errors
    kept = sorted(int(path.name.removeprefix("step_")) for path in (folder / "checkpoints").glob("step_*"))
    assert {7, 14, 21, 28, 35, 42} <= set(kept)
    code, _, errors = finish(
        "train", "video", "--data", frames, "--out", tmp_path / "bad", *tiny, "--replay-within", "x"
    )
    assert code == 2, errors
    assert not (tmp_path / "bad").exists()
