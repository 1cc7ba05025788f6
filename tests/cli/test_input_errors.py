"""Bad input ends every command with 2 and one message; a bug of ours in its reading code keeps its traceback."""

import dataclasses
import errno
import importlib
import json
import re

import pytest
from PIL import Image

from fieldwatch.base import InputError, MissingPathError
from fieldwatch.cli.commands import all_commands
from fieldwatch.cli.output import PACKAGE, BadInput, reading_input
from fieldwatch.record import read_manifest

PLANTED = {
    "train video": ("train video --out OUT", "recon.commands.video.job.prepare_scene"),
    "train splats": ("train splats --out OUT", "recon.commands.splats.job.prepare_scene"),
    "train normals": ("train normals --out OUT", "recon.commands.normals.job.prepare_scene"),
    "train-many": ("train-many PLAN --ray off", "cli.train_many.read_plan"),
    "resume": ("resume RUN", "cli.resume.pipeline_of"),
    "eval": ("eval RUN", "cli.evaluate.pipeline_of"),
    "memory": ("memory RUN", "cli.memory._resolved"),
    "report": ("report RUN", "cli.report.account_of"),
    "growth": ("growth RUN", "cli.growth.growth_ledger"),
    "health": ("health RUN", "cli.health.examine"),
    "infer video": ("infer video RUN --frames 0", "recon.commands.video.infer.open_player"),
    "infer splats": ("infer splats RUN --views test", "recon.commands.splats.infer.open_drawn_run"),
    "infer normals": ("infer normals RUN --image FILE", "recon.commands.normals.infer.open_run"),
    "mesh extract": ("mesh extract RUN", "recon.commands.splats.mesh_extract.open_run"),
    "mesh refine": ("mesh refine RUN FILE --out OUT", "recon.commands.splats.refined_job.prepare_refinement"),
    "mesh texture": ("mesh texture RUN FILE", "recon.commands.mesh.texture.read_mesh"),
    "mesh quality": ("mesh quality FILE", "recon.commands.mesh.quality.read_mesh"),
    "mesh evaluate": ("mesh evaluate FILE --gt FILE", "recon.commands.mesh.evaluate.read_mesh"),
    "mesh view": ("mesh view FILE", "recon.commands.mesh.view.read_mesh"),
    "data integrate-normals": (
        "data integrate-normals FOLDER --out OUT",
        "recon.commands.normals.integrate_normals.read_single_view",
    ),
    "data render-normals": ("data render-normals FILE --out OUT", "recon.commands.normals.render_normals.read_mesh"),
    "data photos": ("data photos CUT -o OUT", "recon.commands.capture.process.find_source"),
    "convert splats": ("convert splats FILE -o OUT.ply", "recon.commands.splats.convert.read_gaussians"),
    "view": ("view FILE --page OUT.html", "recon.commands.view.command.open_scene"),
    "reconstruct": ("reconstruct FOLDER -o OUT", "recon.commands.reconstruct.command.kind_of_input"),
    "export": ("export RUN --to csv", "cli.export.pipeline_name_of"),
    "import": ("import TABLE -o OUT", "cli.import_run.find_runs"),
    "compare": ("compare RUN RUN", "cli.compare.read_sides"),
    "doctor": ("doctor --data CUT", "cli.doctor.kind_of"),
    "watch": ("watch RUN --once", "cli.watch.read_manifest"),
    "gpu": ("gpu --once", "cli.gpu.read_machine"),
    "nsys snapshot": ("nsys snapshot 1", "cli.nsys_snapshot._process"),
    "nsys train": ("nsys train -- true", "cli.nsys_train.required_nsys"),
    "tensorboard": ("tensorboard RUN --print", "cli.tensorboard.command"),
    "completion": ("completion bash", "cli.completion.completed_flags"),
    "replay": ("replay RUN --step 1", "cli.replay.variants_of"),
    "migrate": ("migrate python train.py", "recon.commands.migrate.command.script_of"),
}
"""Command line, and a function in the command's reading code."""

BUGS = (KeyError("gaussians"), ValueError("a bug"), TypeError("a bug"), AttributeError("a bug"), OSError(28, "full"))


@pytest.fixture
def places(tmp_path, trained):
    """Stand-ins of a command line: what is right but for one word."""
    picture = tmp_path / "picture.png"
    Image.new("RGB", (8, 8)).save(picture)
    cut = tmp_path / "cut"
    cut.mkdir()
    (cut / "0.png").write_bytes(picture.read_bytes()[:-20])
    (cut / "run.json").write_text('{"config": {')
    (cut / "transforms.json").write_text('{"frames": [')
    (cut / "plan.toml").write_text('[[scene]]\nname = "a')
    header = "ply", "format binary_little_endian 1.0", "element vertex 9", "property float x", "end_header", ""
    (cut / "mesh.ply").write_text("\n".join(header))
    (cut / "mesh.obj").write_text("v 0 0 0\nv 1 0")
    (cut / "mesh.glb").write_bytes(b"glTF\x02\x00\x00\x00\xff\x00\x00\x00")
    (cut / "clip.mp4").write_bytes(b"\x00\x00\x00\x18ftypmp42")
    empty = tmp_path / "empty"
    empty.mkdir()
    text = tmp_path / "text.txt"
    text.write_text("neither a picture nor a mesh\n")
    plan = tmp_path / "plan.toml"
    plan.write_text('[[scene]]\nname = "a"\npipeline = "video"\n')
    table = tmp_path / "table.csv"
    table.write_text("step,loss,other\n0,1,2\n1,0.5,1\n")
    words = {
        "TABLE": table,
        "OUT": tmp_path / "out",
        "RUN": trained,
        "FILE": picture,
        "FOLDER": empty,
        "PLAN": plan,
        "TEXT": text,
    }
    return words | {"TABLE": table, "EMPTY": empty, "CUT": cut, "MISSING": tmp_path / "gone"}


def test_every_command_is_tried():
    assert PLANTED.keys() == all_commands().keys() == BAD.keys()


@pytest.mark.parametrize("name", PLANTED)
def test_a_bug_in_the_reading_code_is_never_called_bad_input(name, places, fieldwatch, monkeypatch):
    line, place = PLANTED[name]
    module, _, function = place.rpartition(".")
    for bug in BUGS:

        def broken(*_, bug=bug, **__):
            raise bug

        monkeypatch.setattr(importlib.import_module(f"fieldwatch.{module}"), function, broken)
        code, _, message = fieldwatch(*(places.get(word, word) for word in line.split()))
        assert code == 3, message
        assert "Traceback" in message
        assert type(bug).__name__ in message


RUNS = ("MISSING", "EMPTY", "TEXT", "CUT")
MESHES = ("CUT/gone.ply", "EMPTY", "TEXT", "FILE", "CUT/mesh.ply", "CUT/mesh.obj", "CUT/mesh.glb")


def lines(line, values):
    return [line.replace("X", value) for value in values]


BAD = {
    "train video": [
        *lines("train video --out OUT --data X", ("MISSING", "EMPTY", "TEXT", "CUT", "CUT/clip.mp4")),
        *lines("train video --out OUT X", ("--epochs 0", "--rows 0", "--loss L9", "--preset huge", "--lr-type linear")),
        *lines("train video --out OUT --model X", ("grid --grid-cells 4 3", "hnerv --modelsize 0")),
        "train video --out TEXT",
        "train video --out RUN --resume never",
        "train video --out EMPTY --resume must",
        "train video --out OUT --profile-tensors -1",
    ],
    "train splats": [
        *lines("train splats --out OUT --data X", ("MISSING", "EMPTY", "TEXT", "CUT", "FILE")),
        *lines("train splats --out OUT -c X", ("MISSING", "EMPTY", "TEXT")),
        *lines("train splats --out OUT X", ("--views 0", "--growth-from 9 --growth-until 3", "--threads -1")),
        "train splats --out TEXT",
    ],
    "train normals": [
        *lines("train normals --out OUT --data X", ("MISSING", "EMPTY", "TEXT", "CUT", "FILE")),
        *lines("train normals --out OUT --conf X", ("MISSING", "EMPTY", "FILE")),
        *lines("train normals --out OUT X", ("--steps 0", "--levels 0", "--patch 2", "--held-out 1 --views 1")),
        "train normals --out TEXT",
    ],
    "train-many": [*lines("train-many X --ray off", ("MISSING", "EMPTY", "FILE", "TEXT", "CUT/plan.toml"))],
    "resume": [*lines("resume X", RUNS), "resume RUN --profile-window 2 1 --profile-tensors 1"],
    "eval": [*lines("eval X", RUNS), "eval RUN --checkpoint 999", "eval RUN --checkpoint worst"],
    "memory": [*lines("memory X", (*RUNS, "FILE")), "memory"],
    "report": [*lines("report X", RUNS), "report RUN -o TEXT", "report RUN -o TEXT/page.html"],
    "growth": [*lines("growth X", RUNS), "growth RUN --csv EMPTY"],
    "health": [*lines("health X", RUNS), "health RUN --format TEXT", "health RUN --json --format github"],
    "infer video": [*lines("infer video X --frames 0", (*RUNS, "FILE")), "infer video RUN --frames 99"],
    "infer splats": [*lines("infer splats X --views test", (*RUNS, "RUN")), "infer splats RUN --scale 0"],
    "infer normals": [*lines("infer normals X --image FILE", (*RUNS, "RUN")), "infer normals NORMALS --image MISSING"],
    "mesh extract": [*lines("mesh extract X", (*RUNS, "RUN")), "mesh extract RUN --surface-level 2"],
    "mesh refine": [*lines("mesh refine X FILE --out OUT", RUNS), *lines("mesh refine RUN X --out OUT", MESHES)],
    "mesh texture": [*lines("mesh texture X FILE", RUNS), *lines("mesh texture RUN X", MESHES)],
    "mesh quality": lines("mesh quality X", MESHES),
    "mesh evaluate": [*lines("mesh evaluate X --gt FILE", MESHES), "mesh evaluate FILE --gt FILE --samples 0"],
    "mesh view": [*lines("mesh view X", MESHES), "mesh view FILE --seconds 0"],
    "data integrate-normals": [
        *lines("data integrate-normals X --out OUT", ("MISSING", "TEXT", "EMPTY")),
        "data integrate-normals EMPTY --out OUT --median 0",
    ],
    "data render-normals": [
        *lines("data render-normals X --out OUT", MESHES),
        "data render-normals FILE --out TEXT",
        "data render-normals FILE --out OUT --views 0",
    ],
    "data photos": [
        *lines("data photos X -o OUT", ("MISSING", "EMPTY", "TEXT", "CUT")),
        "data photos CUT -o TEXT",
        "data photos CUT -o OUT --frames 2",
    ],
    "convert splats": [
        *lines("convert splats X -o OUT.ply", ("MISSING", "EMPTY", "TEXT", "CUT")),
        "convert splats FILE -o TEXT",
    ],
    "view": [
        *lines("view X --page OUT.html", ("MISSING", "EMPTY", "TEXT", "CUT", "RUN")),
        "view FILE --page TEXT",
        "view FILE --host 0.0.0.0",
    ],
    "reconstruct": [
        *lines("reconstruct X -o OUT", ("MISSING",)),
        "reconstruct FOLDER -o FOLDER",
        "reconstruct FOLDER -o OUT --for normals",
        "reconstruct FOLDER -o OUT --frames 2",
    ],
    "export": [*lines("export X --to csv", RUNS), "export RUN --to csv -o TEXT", "export RUN --to ply"],
    "import": [
        *lines("import X -o OUT", (*RUNS, "RUN", "FILE")),
        *lines("import TABLE -o X", ("TEXT", "RUN", "TEXT/run")),
        *lines("import TABLE -o OUT X", ("--run gone", "--map loss", "--map gone=Loss/total", "--map loss=other")),
    ],
    "compare": [*lines("compare X RUN", RUNS), "compare", "compare RUN", "compare RUN RUN --metric none"],
    "doctor": lines("doctor --data X", ("MISSING", "EMPTY", "TEXT", "CUT")),
    "watch": [*lines("watch X --once", RUNS), "watch RUN --interval 0"],
    "gpu": ["gpu --interval 0", "gpu --interval nan"],
    "nsys snapshot": ["nsys snapshot 999999999", "nsys snapshot 1 --seconds 0"],
    "nsys train": ["nsys train", "nsys train -- MISSING", "nsys train --steps 3 1 -- true"],
    "tensorboard": [*lines("tensorboard X --print", ("MISSING", "TEXT")), "tensorboard"],
    "completion": ["completion tcsh"],
    "replay": [*lines("replay X --step 1", RUNS), "replay RUN --step 999999", "replay RUN --step 1 --do nonsense"],
    "migrate": [*lines("migrate X", ("MISSING", "EMPTY")), "migrate python none.py", "migrate MISSING.conf"],
}
"""Command lines that are the user's to mend."""


@pytest.mark.parametrize("line", [line for lines_of_command in BAD.values() for line in lines_of_command])
def test_bad_input_ends_with_2_and_one_message(line, places, fieldwatch, request):
    if "NORMALS" in line:
        places["NORMALS"] = request.getfixturevalue("trained_normals")
    words = []
    for word in line.split():
        root, slash, rest = word.partition("/")
        words.append(f"{places.get(root, root)}{slash}{rest}")
    code, out, message = fieldwatch(*words)
    assert code == 2, out + message
    assert "Traceback" not in message
    assert message.strip()
    assert not re.search("Unrecognized options|Required options", message), "the line itself is wrong"
    assert out.strip() == ""
    assert not places["OUT"].exists()


def test_a_bug_before_the_first_step_of_a_resume_leaves_a_crash_folder_in_the_run(run, fieldwatch, monkeypatch):
    dataclasses.replace(read_manifest(run), state="interrupted").write(run)

    def broken(_):
        return {}["gaussians"]

    monkeypatch.setattr("fieldwatch.recon.commands.video.job.prepare_scene", broken)
    code, out, message = fieldwatch("resume", run)
    assert code == 3
    assert "Traceback" in message
    (place,) = (run / "crash").iterdir()
    assert str(place) in out.replace("\n", "")
    assert "[bold" not in out
    assert "KeyError 'gaussians'" in out
    assert "KeyError: 'gaussians'" in (place / "traceback.txt").read_text()
    assert json.loads((place / "crash.json").read_text())["error"] == "KeyError: 'gaussians'"
    monkeypatch.undo()
    assert fieldwatch("resume", run)[0] in (0, 1)


@pytest.mark.parametrize(("module", "expected"), [("xatlas", 2), ("a_module_that_nobody_has", 3)])
def test_an_extra_that_is_missing_late_in_a_training_is_named(run, fieldwatch, monkeypatch, module, expected):
    dataclasses.replace(read_manifest(run), state="interrupted").write(run)

    def broken(*_, **__):
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr("fieldwatch.recon.commands.video.job.train_video", broken)
    code, _, message = fieldwatch("resume", run)
    assert code == expected
    assert ("Traceback" in message) == (expected == 3)
    assert ("pip install 'fieldwatch[mesh]'" in message) == (expected == 2)
    assert (run / "crash").exists() == (expected == 3)


def test_a_path_inside_of_the_package_is_no_input_of_the_users(tmp_path):
    with pytest.raises(FileNotFoundError), reading_input():
        (PACKAGE / "no-such-asset.css").open()
    with pytest.raises(BadInput, match="gone"), reading_input():
        (tmp_path / "gone").open()


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EMFILE, errno.ENOMEM])
def test_a_trouble_of_the_machine_is_no_bad_input_although_it_names_a_path(number):
    with pytest.raises(OSError, match="a reason") as raised, reading_input():
        raise OSError(number, "a reason", "/data/photo.png")
    assert not isinstance(raised.value, InputError)


def test_an_error_of_input_that_is_an_os_error_too_keeps_its_message():
    with pytest.raises(InputError, match="the whole message"), reading_input():
        raise MissingPathError("the whole message, with what to do about it")
