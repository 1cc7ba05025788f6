"""``fieldwatch migrate``: original lines and files in, fieldwatch commands out, with reasons for what is left out."""

import json
import shlex
from pathlib import Path

import pytest

from fieldwatch.cli import main
from fieldwatch.cli.commands import all_commands, flag_names
from fieldwatch.recon.commands.migrate.command import migrate
from fieldwatch.recon.commands.migrate.gaussian_splatting import RENAMED
from fieldwatch.recon.commands.migrate.mesh import EXTRACT_ORIGINALS, REFINE_ORIGINALS
from fieldwatch.recon.commands.migrate.normals import read as read_normals
from fieldwatch.recon.commands.migrate.scripts import SCRIPT_NAMES, script_of
from fieldwatch.recon.commands.migrate.sugar import ORIGINAL_FLAGS
from fieldwatch.recon.commands.migrate.video import ORIGINAL_FLAGS as VIDEO_FLAGS
from fieldwatch.recon.pipelines.normals import PRESETS

VANILLA = "train splats --regularization none --preset full"
BEAR = Path(__file__).parents[4] / "examples" / "diligent_bear.conf"


def told(line):
    """The command, and the flags that notes are about."""
    migrated = migrate(shlex.split(line))
    return " ".join(migrated.command), [about for about, _ in migrated.notes]


@pytest.mark.parametrize(
    ("original", "command", "left_out"),
    [
        (
            "python train.py -s S -c C -i 7000 -r sdf --eval True",
            "train splats --data S --checkpoint-path C --iteration-to-load 7000 --regularization sdf --held-out 8",
            [],
        ),
        ("python train_coarse_sdf.py -s S -c C", "train splats --regularization sdf --data S --checkpoint-path C", []),
        (
            "CUDA_VISIBLE_DEVICES=1 python -u train.py -s S -r density --low_poly True --delete_first --foo 3",
            "train splats --data S --regularization density",
            ["--low_poly", "--delete_first", "--foo"],
        ),
        (
            "python train_full_pipeline.py -s S -r density --high_poly False",
            "train splats --data S --regularization density",
            ["--high_poly"],
        ),
        (
            "python train.py -s S --iterations 30000 -r -1 --port 6009 -w",
            f"{VANILLA} --data S --coarse-iterations 30000 --background white --held-out 0",
            ["--port"],
        ),
        (
            "python train.py -s S -r 2 --eval --feature_lr 0.004",
            f"{VANILLA} --data S --held-out 8 --lr-constant 0.004 --lr-rest 0.0002",
            ["-r"],
        ),
        (
            'python extract_mesh.py -s S -c C -m coarse.pt -l 0.3 -b "(-1,-1,-1)" -v 1000 -B "(1,1,1)"',
            "mesh extract RUN --surface-level 0.3 --vertices 1000 --bbox -1 -1 -1 1 1 1",
            ["-s", "-c", "-m"],
        ),
        (
            "python train_refined.py -s S -c C -m mesh.ply -g 1 -f 15000",
            "mesh refine RUN mesh.ply --gaussians-per-triangle 1 --iterations 15000",
            ["-s", "-c"],
        ),
        (
            "python extract_refined_mesh_with_texture.py -m R.pt --square_size 8",
            "mesh texture RUN MESH --square-size 8",
            ["-m"],
        ),
        ("python utilities/evaluate_mesh.py --mesh X.ply", "mesh evaluate X.ply --gt TRUE", []),
        (
            "python inference.py --checkpoint ckpt_030000.pth --image I.png",
            "infer normals RUN --image I.png --like VIEW",
            ["--checkpoint", "--image"],
        ),
        ("python eval_all_patches.py --checkpoint X", "eval RUN --checkpoint X", []),
        (
            "python train_dual_head.py --data_path F --vid V -e 10 --loss Fusion6",
            "train video --preset dual --data F --vid V --epochs 10 --loss Fusion6",
            [],
        ),
        (
            "python exp_runner.py --mode train --is_continue --gpu 0 --debug",
            "train normals --resume must --device cuda",
            ["--debug"],
        ),
    ],
)
def test_lines_of_the_original_scripts(original, command, left_out):
    assert told(original) == (command, left_out)


def test_a_conf_file_becomes_flags_that_mean_the_same():
    migrated = migrate([str(BEAR), "--obj-name", "bear", "--seed", "3"])
    assert migrated.command[:4] == ("train", "normals", "--preset", "pmni")
    ours = read_normals(list(migrated.command[2:]))
    theirs = read_normals(["--conf", str(BEAR), "--obj-name", "bear", "--seed", "3"])
    assert ours.config is None
    assert "--data" in migrated.command
    assert f"--out {theirs.out}" in " ".join(migrated.command)
    assert any("without effect" in reason for _, reason in migrated.notes)
    assert theirs.config.data != PRESETS["pmni"]().data


def test_cfg_args_of_a_model_become_a_training(tmp_path):
    (tmp_path / "point_cloud" / "iteration_7").mkdir(parents=True)
    (tmp_path / "point_cloud" / "iteration_7" / "point_cloud.ply").touch()
    (tmp_path / "cfg_args").write_text("Namespace(data_device='cuda', eval=True, sh_degree=2, source_path='/s')")
    command, left_out = told(shlex.quote(str(tmp_path)))
    assert "--data /s" in command
    assert "--degree 2" in command
    assert "--held-out 8" in command
    assert left_out == ["--data_device"]


def test_every_name_we_translate_to_is_a_flag():
    names = {
        "train splats": {*RENAMED.values(), *ORIGINAL_FLAGS.values(), "--lr-constant", "--lr-rest", "--antialiased"},
        "mesh extract": {*EXTRACT_ORIGINALS.values()} - {"--bboxmin", "--bboxmax"},
        "mesh refine": {*REFINE_ORIGINALS.values()},
        "train video": {*VIDEO_FLAGS.values()},
    }
    assert {name: flags - flag_names(name) for name, flags in names.items() if flags - flag_names(name)} == {}
    scripts = [script_of(name, ()) for name in SCRIPT_NAMES]
    assert {script.command for script in scripts} <= set(all_commands())
    wrong = [(s.command, s.start) for s in scripts if not {*s.start[::2], *s.needed} <= flag_names(s.command)]
    assert wrong == []


def test_it_prints_and_explains(capsys):
    assert main(shlex.split("migrate python train.py -s S -r density --export_ply True")) == 0
    out = capsys.readouterr().out
    assert out.splitlines()[0] == "fieldwatch train splats --data S --regularization density"
    assert "--export_ply: --export_ply of the original scripts" in out
    assert main(shlex.split("migrate --json python extract_mesh.py -l 0.3")) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["command"] == ["fieldwatch", "mesh", "extract", "RUN", "--surface-level", "0.3"]
    assert answer["missing"] == ["RUN"]


def test_run_calls_the_command(capsys):
    assert main(shlex.split("migrate --run python utilities/evaluate_mesh.py --mesh none.ply --gt none.ply")) == 2
    assert "none.ply" in capsys.readouterr().err
    assert main(shlex.split("migrate --run python utilities/evaluate_mesh.py --mesh none.ply")) == 2
    assert "TRUE" in capsys.readouterr().err
    assert main(shlex.split("migrate --run python extract_mesh.py -l 0.3")) == 2
    assert "RUN" in capsys.readouterr().err


@pytest.mark.parametrize("line", ["python nothing.py -s S", "scene/", "fieldwatch train splats"])
def test_what_is_not_known_is_refused_with_what_is(line, capsys):
    assert main(["migrate", *shlex.split(line)]) == 2
    assert "train.py" in capsys.readouterr().err
