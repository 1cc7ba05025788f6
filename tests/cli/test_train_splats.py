"""fieldwatch train splats: its flags, the original's command lines, what it says, and one message per bad input."""

import json
from dataclasses import fields
from pathlib import Path

import pytest

from fieldwatch.cli.train import parse as parse_words
from fieldwatch.recon.commands.splats import SPLATS
from fieldwatch.recon.pipelines.splats import PRESETS, SplatsConfig
from fieldwatch.record import read_history, read_manifest


def parse(words):
    chosen = parse_words(SPLATS, words)
    return chosen, chosen.preset


def config_of(line):
    return parse(line.split())[0].config


def test_without_flags_the_default_preset_is_trained():
    chosen, preset = parse([])
    assert chosen.config == preset == PRESETS["default"]()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_where_settings_start_from(name):
    chosen, preset = parse(["--preset", name, "--seed", "3"])
    assert preset == PRESETS[name]()
    changed = [
        each.name for each in fields(SplatsConfig) if getattr(chosen.config, each.name) != getattr(preset, each.name)
    ]
    assert changed == ["seed"]


def test_nested_settings_have_flags_of_their_own():
    config = config_of("--growth-cap 100 --growth_until 5000 --entropy-weight 0.3 --lr_means 1e-3 --literal")
    assert (config.growth_options.growth_cap, config.growth_options.growth_until) == (100, 5000)
    assert (config.surface.entropy_weight, config.surface.literal, config.rates.lr_means) == (0.3, True, 1e-3)


@pytest.mark.parametrize(("last", "tests"), [(200, (100, 150, 200)), (10_000, (7000, 8000, 9000, 10_000))])
def test_the_validation_commands_of_the_original_mean_what_they_say(last, tests):
    numbers = " ".join(map(str, tests))
    config = config_of(
        f"-s X -c Y -r dn_consistency --coarse_iterations {last} --test_iterations {numbers} --eval True"
    )
    assert (config.data, config.checkpoint_path, config.held_out) == (Path("X"), Path("Y"), 8)
    assert (config.regularization, config.coarse_iterations, config.test_iterations) == ("dn_consistency", last, tests)


def test_our_own_flag_wins_over_the_original_one():
    assert config_of("--held_out 5 --eval True").held_out == 5
    assert config_of("--eval False").held_out == 0


def test_the_profiling_command_of_the_original():
    chosen, _ = parse("-s X -c Y -i 7000 -r density --profile_tensors True --checkpoint_milestones 7000 9000".split())
    assert (chosen.config.iteration_to_load, chosen.config.regularization) == (7000, "density")
    assert chosen.config.checkpoint_milestones == (7000, 9000)
    assert chosen.flags.profile.chosen().interval == 50


def test_lpips_without_weights_is_noted_once_however_often_the_run_is_evaluated(fieldwatch, tmp_path, monkeypatch):
    monkeypatch.setenv("FIELDWATCH_LPIPS", str(tmp_path))
    words = ["--views", "4", "--held-out", "4", "--turntable", "0", "--regularization", "none", "--device", "cpu"]
    words += ["--schedule-scale", "0.001", "--coarse-iterations", "6000", "--test-iterations", "1000", "3000", "5000"]
    code, out, _ = fieldwatch("train", "splats", "--out", tmp_path / "run", *words)
    assert code in (0, 1)
    assert len(read_history(tmp_path / "run")["Test/psnr"]) == 4
    assert out.count("LPIPS") == 1
    assert "fieldwatch doctor" in " ".join(out.split())


def test_the_ending_names_quality_and_every_place(trained_splats, fieldwatch, tmp_path):
    words = ["train", "splats", "--out", tmp_path / "run", "-c", trained_splats / "3dgs", "-r", "dn_consistency"]
    words += ["--schedule-scale", "0.002", "--turntable", "0", "--test-iterations", "15000", "--prune-below", "0.01"]
    code, out, _ = fieldwatch(*words, "--iteration_to_load", "7000", "--device", "cpu")
    assert code in (0, 1)
    flat = " ".join(out.split())
    for text in ("Gaussians of iteration 7000", "steps 14 to 30", "note: each iteration", "held out", "SSIM"):
        assert text in flat
    for place in ("log.txt", "checkpoints", "products/point_cloud.ply", "products/coarse_30.pt", "products/renders"):
        assert str(tmp_path / "run" / place) in out
        assert (tmp_path / "run" / place).exists()
    assert f"fieldwatch eval {tmp_path / 'run'}" in out


def test_json_prints_one_document_and_nothing_else(tmp_path, fieldwatch):
    words = ("--views", "6", "--held-out", "0", "--coarse-iterations", "15000", "--schedule-scale", "0.001")
    words += ("--turntable", "0", "--prune-below", "0.01")
    code, out, _ = fieldwatch("train", "splats", "--out", tmp_path / "run", *words, "--json")
    answer = json.loads(out)
    assert answer["exit_code"] == code
    assert answer["metrics"]["Test/psnr"] > 5
    assert "Test/psnr_gap" not in answer["metrics"]
    assert Path(answer["files"]["point_cloud"]).is_file()


def test_the_run_knows_its_pipeline_and_what_differs_from_the_preset(trained_splats):
    manifest = read_manifest(trained_splats)
    assert manifest.about["pipeline"] == "splats"
    assert manifest.preset_difference["views"] == [48, 6]
    assert manifest.preset_difference["growth_options.growth_cap"][1] == 1500


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("-s nowhere", "nowhere"),
        ("-c nowhere", "nowhere is not a folder"),
        ("--preset best", "expected one of default, cpu, rooms, full, gpu-8, gpu-12, gpu-24, gpu-80, parity"),
        ("--coarse-iterations 1 --schedule-scale 0.01", "less than one step"),
        ("--masks m", "add -s FOLDER"),
        ("--surface_level 0.3", "fieldwatch mesh"),
        ("--profile-window 1 2", "--profile-window needs --profile-tensors"),
        ("--snapshot-at 3 --device cpu --views 6", "--snapshot-at needs a GPU"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(refused, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", "splats", *words.split())
    assert list(tmp_path.iterdir()) == []


def test_a_folder_of_another_config_is_refused_with_what_differs(splats, refused):
    assert "views: stored 6, given 48" in refused("train", "splats", "--out", splats)


def test_an_unknown_flag_is_an_error_of_usage(fieldwatch):
    code, out, message = fieldwatch("train", "splats", "--color", "red")
    assert (code, out) == (2, "")
    assert "--color" in message


def test_help_explains_the_run_folder_and_the_original_flags(fieldwatch):
    code, out, _ = fieldwatch("train", "splats", "--help")
    assert code == 0
    for text in ("Example: fieldwatch train splats", "journal.jsonl", "products/", "-s, -c, -i, -r", "--growth-cap"):
        assert text in " ".join(out.split())
