"""fieldwatch train normals: its flags, PMNI's command lines, what it says, one message per bad input."""

import io
import json
from dataclasses import fields
from pathlib import Path

import pytest
from rich.console import Console

from fieldwatch.cli import main
from fieldwatch.cli.output import BadInput
from fieldwatch.cli.train import parse as parse_words
from fieldwatch.recon.commands.migrate.pmni_flags import translate_flags
from fieldwatch.recon.commands.normals import NORMALS
from fieldwatch.recon.commands.normals.job import quality_table
from fieldwatch.recon.data import synthetic_normal_maps, write_normal_maps
from fieldwatch.recon.pipelines.normals import PRESETS, NormalsConfig, stored_config
from fieldwatch.record import read_history, read_manifest
from small_products import small_products

BEAR = Path(__file__).parents[2] / "examples" / "diligent_bear.conf"
TINY = (
    "--steps 6 --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 "
    "--finest-resolution 12 --table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --mesh-resolution 12 "
    "--mesh-at 0 --evaluate-at 0 --poses-at 0 --turntable 0"
).split()


def parse(words):
    return parse_words(NORMALS, words)


def config_of(line):
    return parse(line.split()).config


@pytest.fixture(autouse=True, scope="module")
def _small_products():
    with small_products():
        yield


@pytest.fixture(scope="module")
def maps(tmp_path_factory) -> Path:
    """A folder of three views, without a true mesh."""
    return write_normal_maps(synthetic_normal_maps(views=3, size=24), tmp_path_factory.mktemp("maps"))


@pytest.fixture(scope="module")
def line(maps, tmp_path_factory) -> list[str]:
    """A command line with a .conf file."""
    folder = tmp_path_factory.mktemp("runs")
    text = f"general.base_exp_dir = {folder}/CASE_NAME\ndataset.data_dir = {maps}\n"
    text += "train { batch_size = 20, learning_rate = 2e-3\n scale_lr = 0 }"
    (folder / "tiny.conf").write_text(text, encoding="utf-8")
    words = ["--conf", str(folder / "tiny.conf"), "--obj-name", "ball", *TINY, "--preset", "default"]
    return [*words, "--stages", "all@0 mask=1 normal=1"]


@pytest.fixture(scope="module")
def finished(line) -> Path:
    """A finished run of six steps; nobody may change it."""
    assert main(["train", "normals", *line]) in (0, 1)
    return parse(line).out


def test_without_flags_the_default_preset_is_trained():
    chosen = parse([])
    assert chosen.config == chosen.preset == PRESETS["default"]()
    assert chosen.out.parts[:2] == ("runs", "normals")


@pytest.mark.parametrize("name", PRESETS)
def test_presets_are_where_settings_start_from(name):
    chosen = parse(["--preset", name, "--seed", "3"])
    assert chosen.preset == PRESETS[name]()
    config = chosen.config
    assert [f.name for f in fields(NormalsConfig) if getattr(config, f.name) != getattr(chosen.preset, f.name)] == [
        "seed"
    ]


def test_nested_settings_have_flags_of_their_own():
    config = config_of("--hidden 32 --rays 99 --pose_start ring --lr-table 1e-3 --normal-norm l1 --rollbacks 1")
    assert (config.sdf.hidden, config.rays.rays, config.poses.pose_start) == (32, 99, "ring")
    assert (config.rates.lr_table, config.terms.normal_norm, config.recovery.rollbacks) == (1e-3, "l1", 1)


def test_stages_are_texts():
    stages = ["shape@0 mask=1 eikonal=0.1", "normals@10000+5000 normal=1 mask=1"]
    assert parse(["--stages", *stages]).config.stages == tuple(stages)


def test_a_conf_file_changes_the_preset_pmni_and_flags_beside_it_win():
    words = ["--conf", str(BEAR), "--obj_name=bear"]
    plain, changed = parse(words), parse([*words, "--lr", "7e-4", "--preset", "parity", "--out", "x"])
    assert plain.preset == PRESETS["pmni"]()
    assert plain.out == Path("exp/diligent_mv/bear")
    assert plain.config.rates.lr == 1e-3
    assert plain.config.data == Path("data/diligent_mv_normals/bear")
    assert changed.preset == PRESETS["parity"]()
    assert changed.config.rates.lr == 7e-4
    assert changed.config.terms == PRESETS["parity"]().terms
    assert changed.out == Path("x")
    assert plain.flags.log_every == 100
    assert parse([*words, "--log-every", "7"]).flags.log_every == 7


@pytest.mark.parametrize("words", [["--preset", "seeds"], ["--preset=seeds"], ["--conf", str(BEAR), "--obj-name=bear"]])
def test_the_former_name_of_a_preset_is_accepted_and_not_listed(words, fieldwatch):
    chosen = parse(words)
    assert chosen.preset == PRESETS["pmni"]()
    assert chosen.flags.preset == "pmni"
    assert "seeds" not in PRESETS
    for line in (["--preset", "seeds", "--help-all"], ["--help"]):
        code, out, _ = fieldwatch("train", "normals", *line)
        assert code == 0
        assert "pmni" in out
        assert "seeds" not in out


def test_the_former_name_of_a_preset_is_accepted_in_a_file_of_scenes(fieldwatch, tmp_path):
    (tmp_path / "scenes.toml").write_text('[[scene]]\nname = "a"\npipeline = "normals"\npreset = "seeds"\n')
    code, out, said = fieldwatch("train-many", tmp_path / "scenes.toml", "--dry-run", "--ray", "off")
    assert code == 0, out + said


def test_the_original_command_line():
    words = f"--conf {BEAR} --mode train --gpu 0 --mcube_threshold 0.0 --obj_name bear --is_continue".split()
    chosen = parse(words)
    more = chosen.flags.more
    assert (chosen.flags.resume, chosen.config.device, more.conf, more.obj_name) == ("must", "cuda", BEAR, "bear")


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("--mode eval_normal", "--mode eval_normal: this command trains"),
        ("--mode=validate_mesh", "`fieldwatch mesh evaluate MESH`"),
        ("--mcube_threshold 0.1", "meshes are extracted at distance 0"),
        ("--mcube_threshold high", "leave the flag out"),
        ("--gpu 2", "CUDA_VISIBLE_DEVICES=2 fieldwatch train normals --device cuda"),
        ("--case bear", "use --obj-name NAME"),
        ("--config a.conf", "use --conf FILE"),
        ("--debug", "use --steps 100"),
    ],
)
def test_what_the_original_ignored_or_never_had_is_refused(line, said):
    with pytest.raises(BadInput) as refusal:
        translate_flags(line.split())
    assert said in str(refusal.value)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--data nowhere", "nowhere"),
        ("--preset best", "--preset 'best' is not known: expected one of default, cpu, poses, pmni, gpu, parity"),
        ("--obj-name bear", "give --conf FILE, too"),
        ("--conf nowhere.conf", "--conf nowhere.conf: there is no such file"),
        (f"--conf {BEAR}", "give the object that replaces CASE_NAME with --obj-name NAME"),
        (f"--conf {BEAR} --obj-name bear", "data/diligent_mv_normals/bear"),
        ("--snapshot-at 3 --device cpu --views 3 --size 24", "--snapshot-at needs a GPU"),
    ],
)
def test_bad_input_is_named_and_nothing_is_written(refused, tmp_path, monkeypatch, words, message):
    monkeypatch.chdir(tmp_path)
    assert message in refused("train", "normals", *words.split())
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_flag_is_an_error_of_usage(fieldwatch):
    code, out, message = fieldwatch("train", "normals", "--color", "red")
    assert (code, out) == (2, "")
    assert "--color" in message


def test_help_explains_the_run_folder_and_the_conf_files(fieldwatch):
    code, out, _ = fieldwatch("train", "normals", "--help")
    assert code == 0
    for text in ("Example: fieldwatch train normals", "--conf", "meshes_validation/", "--stages", "--learn-rotation"):
        assert text in out


def test_what_is_to_be_known_of_a_conf_file_is_told_at_the_start(line):
    chosen = parse(line)
    job = NORMALS.load("prepare")(chosen.config)
    assert job.headline.startswith("3 views 24x24, 3 train;")
    assert job.headline.endswith("; 6 steps")
    assert "tiny.conf: without effect: train.scale_lr" in chosen.line.notes[0]
    assert any("is rescaled to 6 steps" in note for note in job.notes)


def test_a_conf_file_trains_and_what_it_says_is_in_the_run(finished):
    assert finished.name == "ball"
    for place in ("log.txt", "checkpoints", "poses", "products/mesh.ply"):
        assert (finished / place).exists()
    config = stored_config(finished)
    assert (config.rays.rays_per_view, config.rates.lr, config.steps) == (20, 2e-3, 6)


def test_the_run_knows_its_pipeline_and_what_differs_from_the_preset(finished):
    manifest = read_manifest(finished)
    assert manifest.about["pipeline"] == "normals"
    assert manifest.preset_difference["rates.lr"] == [1e-3, 2e-3]
    assert manifest.preset_difference["sdf.levels"] == [8, 3]


def test_a_finished_run_is_told_by_resume_health_and_tensorboard(finished, fieldwatch):
    code, out, _ = fieldwatch("resume", finished)
    assert code in (0, 1)
    flat = " ".join(out.split())
    assert "is finished" in flat
    assert "larger --steps" in flat
    assert "mean angular error (degrees)" in flat
    code, out, _ = fieldwatch("health", finished, "--json")
    assert json.loads(out)["state"] == "finished"
    code, out, _ = fieldwatch("tensorboard", finished, "--print")
    assert str(finished / "tensorboard") in out


def test_a_folder_of_another_config_is_refused_with_what_differs(finished, refused):
    assert f"steps: stored 6, given {PRESETS['default']().steps}" in refused("train", "normals", "--out", finished)


def shown(metrics):
    file = io.StringIO()
    Console(file=file, width=100).print(quality_table(metrics))
    return [" ".join(line.replace("│", " ").split()) for line in file.getvalue().splitlines()]


def test_quality_of_training_views_stands_beside_the_held_out_ones():
    lines = shown({"Eval/mae": 1.234, "Eval/mae_held_out": 2.5, "Eval/missed": 0.0123, "Eval/chamfer_percent": 0.0812})
    assert "mean angular error (degrees) 1.23 2.50" in lines
    assert any(line.endswith("a surface 1.23% -") for line in lines)
    assert any(line.startswith("Chamfer distance (% of the diameter) 0.081") for line in lines)
    assert not any("cameras" in line for line in lines)


def test_without_held_out_views_there_is_one_column():
    lines = shown({"Eval/mae": 1.234, "Eval/pose_rotation": 0.5, "Eval/pose_position": 0.01})
    assert "mean angular error (degrees) 1.23" in lines
    assert any(line.endswith("error (degrees) 0.500") for line in lines)
    assert not any("held out" in line for line in lines)


def test_the_warm_up_samples_fewer_rays(maps, tmp_path):
    limited = [
        "--rays-per-view",
        "20",
        "--sample-budget",
        "None",
        "--warm-up-rays",
        "5",
        "--warm-up-rays-until",
        "10000",
    ]
    words = [*TINY, *limited, "--views-per-step", "0", "--data", str(maps), "--out", str(tmp_path / "run")]
    assert main(["train", "normals", *words]) in (0, 1)
    rays = read_history(tmp_path / "run")["Statistics/rays"]
    assert rays.values.tolist() == [15, 15, 60, 60, 60, 60]


def test_poses_that_wait_longer_than_the_first_look_at_the_parameters(maps, tmp_path):
    words = [*TINY, "--steps", "60", "--learn-rotation", "--learn-translation", "--poses-from", "27500"]  # step 55
    assert main(["train", "normals", "--data", str(maps), "--out", str(tmp_path / "run"), *words]) in (0, 1)
    norms = read_history(tmp_path / "run")["Gradients/poses_norm"]
    assert norms.steps.tolist() == list(range(55, 60))
