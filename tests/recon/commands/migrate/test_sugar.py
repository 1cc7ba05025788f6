"""The original SuGaR command lines in our words."""

import re

import pytest

from fieldwatch.cli.commands import flag_names
from fieldwatch.cli.output import BadInput
from fieldwatch.recon.commands.migrate import sugar
from fieldwatch.recon.commands.migrate.sugar import translate

EXTRACT, REFINE, TEXTURE = (
    "fieldwatch mesh extract RUN",
    "fieldwatch mesh refine RUN MESH",
    "fieldwatch mesh texture RUN MESH",
)
QUOTED = re.compile(r"`([^`]*)`")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("-s X", "--data X"),
        ("--scene_path X", "--data X"),
        ("--source_path=X", "--data=X"),
        ("-c Y -i 7000", "--checkpoint-path Y --iteration-to-load 7000"),
        ("--checkpoint_path Y", "--checkpoint_path Y"),
        ("-r sdf", "--regularization sdf"),
        ("--regularization_type density", "--regularization density"),
        ("--test_iterations 100 150", "--test_iterations 100 150"),
        ("--estimation_factor 0.3 --normal_factor 0.4", "--density-weight 0.3 --better-normal-weight 0.4"),
        ("-o there", "--out there"),
        ("--eval True", "--held-out 8"),
        ("--eval", "--held-out 8"),
        ("--eval False", "--held-out 0"),
        ("--eval=no", "--held-out 0"),
        ("--held_out 5 --eval True", "--held-out 8 --held_out 5"),
        ("--eval --seed 3", "--held-out 8 --seed 3"),
        ("--white_background True", "--background white"),
        ("--white_background=False", "--background black"),
        ("--gpu 0", "--device cuda"),
        ("--mip True --exposure False", "--no-exposure --mip"),
        ("--prune_on_load --literal true", "--literal --prune-on-load"),
        ("--seed 3 --json", "--seed 3 --json"),
        ("--lr_means 1e-3", "--lr_means 1e-3"),
    ],
)
def test_flags_get_the_name_they_have_here(given, meant):
    found = translate(given.split())
    assert (found.arguments, found.notes) == (meant.split(), [])


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("-l 0.3", [EXTRACT]),
        ("--surface_level 0.3", [EXTRACT]),
        ("-v 1000", [EXTRACT]),
        ("--low_poly 1", [f"{EXTRACT} --background --vertices 200000", f"{REFINE} --gaussians-per-triangle 6"]),
        ("--low_poly", [f"{EXTRACT} --background --vertices 200000", f"{REFINE} --gaussians-per-triangle 6"]),
        ("--high_poly True", [f"{EXTRACT} --background --vertices 1000000", f"{REFINE} --gaussians-per-triangle 1"]),
        ("--use_marching_cubes=True", [f"{EXTRACT} --method density"]),
        ("--refinement_time short", [REFINE]),
        ("--normal_consistency_factor 1", [REFINE]),
        ("--square-size 8", [TEXTURE]),
        ("--export_obj True", [TEXTURE]),
    ],
)
def test_flags_of_the_mesh_say_which_command_takes_them(words, commands):
    with pytest.raises(BadInput) as refused:
        translate(["-s", "X", *words.split()])
    assert QUOTED.findall(str(refused.value)) == commands


@pytest.mark.parametrize(
    ("words", "commands"),
    [
        ("--high_poly False", [f"{EXTRACT} --background --vertices 200000", f"{REFINE} --gaussians-per-triangle 6"]),
        ("--high-poly=False", [f"{EXTRACT} --background --vertices 200000", f"{REFINE} --gaussians-per-triangle 6"]),
        ("--low_poly False", [f"{EXTRACT} --background --vertices 1000000", f"{REFINE} --gaussians-per-triangle 1"]),
        ("--skip_training no", [EXTRACT]),
        ("--postprocess_mesh False", [EXTRACT]),
        ("--use_marching_cubes False", [EXTRACT]),
        ("--export_uv_textured_mesh False", [TEXTURE]),
        ("-t False", [TEXTURE]),
    ],
)
def test_switches_of_the_mesh_that_are_off_change_nothing(words, commands):
    found = translate(["-s", "X", *words.split(), "--seed", "3"])
    assert found.arguments == ["--data", "X", "--seed", "3"]
    (note,) = found.notes
    assert note.startswith(words.partition("=")[0].split()[0])
    assert QUOTED.findall(note) == commands


def test_every_quoted_command_is_valid():
    texts = [*sugar._MESH.values(), *(text for pair in sugar._MESH_SWITCHES.values() for text in pair)]
    for command in {command for text in texts for command in QUOTED.findall(text)}:
        _, stage, *words = command.split()[1:]
        flags = {word for word in words if word.startswith("--")}
        assert flags <= flag_names(f"mesh {stage}"), command


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--eval maybe", "got 'maybe'"),
        ("--mip=2", "got '2'"),
        ("--gpu 1", "CUDA_VISIBLE_DEVICES=1 fieldwatch train splats --device cuda"),
        ("--gpu", "CUDA_VISIBLE_DEVICES=N"),
        ("--resume_checkpoint x.pt", "fieldwatch resume RUN"),
        ("--experiment_name mine", "--out runs/NAME"),
        ("--use_gradient_checkpointing True", "lower --longer-side or --growth-cap"),
        ("--export_ply True", "always written as PLY"),
        ("--high_poly maybe", "got 'maybe'"),
    ],
)
def test_what_is_solved_otherwise_is_told(words, message):
    with pytest.raises(BadInput) as refused:
        translate(words.split())
    assert message in str(refused.value)
