"""The original SuGaR command lines in our words."""

import pytest

from fieldwatch.cli.output import BadInput
from fieldwatch.recon.commands.migrate.sugar import translate_flags


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
    assert translate_flags(given.split()) == meant.split()


@pytest.mark.parametrize(
    ("flag", "command"),
    [
        ("-l", "extract"),
        ("--surface_level", "extract"),
        ("-v", "extract"),
        ("--low_poly", "extract"),
        ("--refinement_time", "refine"),
        ("--normal_consistency_factor", "refine"),
        ("--square-size=8", "texture"),
    ],
)
def test_flags_of_the_mesh_say_which_command_takes_them(flag, command):
    with pytest.raises(BadInput, match=f"`fieldwatch mesh {command} RUN`"):
        translate_flags(["-s", "X", *flag.split("="), "1"])


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
    ],
)
def test_what_is_solved_otherwise_is_told(words, message):
    with pytest.raises(BadInput) as refused:
        translate_flags(words.split())
    assert message in str(refused.value)
