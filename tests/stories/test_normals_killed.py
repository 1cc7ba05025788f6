"""A normals run that is killed goes on to the very same surface."""

import time

import torch

from fieldwatch.checkpoint import Checkpoints
from fieldwatch.recon.data import synthetic_normal_maps, write_normal_maps
from fieldwatch.record import read_history

STEPS = 60
TINY = (
    f"--steps {STEPS} --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 --finest-resolution 12 "
    "--table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --views-per-step 2 --views-per-graph 1 "
    "--mesh-resolution 12 --mesh-at 0 --evaluate-at 0 --poses-at 0 --turntable 0 --checkpoint-interval 2500 "
    "--pose-start noisy "
    "--rotation-noise 1 --translation-noise 0.02 --learn-rotation --learn-translation --poses-from 3000 "
    "--stages all@0+15000 normal=1 mask=1 eikonal=0.1 depth=0.1 point_cloud=0.01 consistency=0.01"
)


def command(maps, out):
    words = TINY.partition(" --stages ")
    stage = words[2]
    return [
        *("train", "normals", "--data", maps, "--out", out),
        *words[0].split(),
        *("--stages", stage),
    ]


def items_of(folder):
    return Checkpoints(folder / "checkpoints").read("last")


def differences(one, other, name=""):
    """Names of the tensors and numbers that are not the same to the bit."""
    if isinstance(one, dict):
        keys = sorted(set(one) | set(other), key=str)
        return [found for key in keys for found in differences(one.get(key), other.get(key), f"{name}/{key}")]
    if isinstance(one, list | tuple):
        pairs = zip(one, other, strict=True)
        return [found for i, pair in enumerate(pairs) for found in differences(*pair, f"{name}/{i}")]
    if isinstance(one, torch.Tensor):
        return [] if torch.equal(one, other) else [name]
    return [] if repr(one) == repr(other) else [name]


def test_a_killed_run_ends_with_the_surface_poses_and_state_of_an_uninterrupted_one(tmp_path, start, finish):
    maps = write_normal_maps(synthetic_normal_maps(views=3, size=24), tmp_path / "maps")
    whole = tmp_path / "whole"
    cut = tmp_path / "cut"
    undisturbed = start(*command(maps, whole))
    killed = start(*command(maps, cut))
    while not list((cut / "checkpoints").glob("ckpt_00002*")) and killed.poll() is None:
        time.sleep(0.01)
    killed.kill()
    killed.communicate()
    assert not list((cut / "checkpoints").glob(f"ckpt_{STEPS:06d}")), "it was to be killed on its way"
    _, complaint = undisturbed.communicate()
    assert undisturbed.returncode in (0, 1), complaint
    code, _, complaint = finish(*command(maps, cut))
    assert code in (0, 1), complaint
    here = items_of(cut)
    there = items_of(whole)
    assert here.keys() == there.keys() >= {"model", "field_optimizer", "pose_optimizer", "rays", "recovery"}
    states = [
        items.pop("random_state") for items in (here, there)
    ]  # python's and numpy's own differ by process: unused
    assert torch.equal(*(torch.as_tensor(state["torch"]) for state in states))
    assert differences(here, there) == []
    losses = [read_history(folder)["Loss/total"].values for folder in (cut, whole)]
    assert losses[0].tolist() == losses[1].tolist()
    assert len(losses[0]) == STEPS
