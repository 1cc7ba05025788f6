"""Two processes train one surface: poses, grid and losses are those of one process, up to the order of sums."""

import json

import numpy as np
import pytest

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.recon.data import synthetic_normal_maps, write_normal_maps
from fieldwatch.record import read_events

STEPS = 24
WORDS = (
    f"train normals --steps {STEPS} --nominal 240 --threads 1 --device cpu --levels 3 "
    "--first-levels 2 --base-resolution 4 --finest-resolution 12 --table-bits 10 --hidden 16 --grid-resolution 16 "
    "--grid-every 4 --first-step 0.04 --last-step 0.02 --rays 61 --sample-budget 900 --views-per-step 3 "
    "--views-per-graph 3 --mesh-resolution 12 --mesh-at 0 --evaluate-at 120 --poses-at 0 --turntable 0 "
    "--checkpoint-interval 0 --pose-start noisy --rotation-noise 1 --translation-noise 0.02 --learn-rotation "
    "--learn-translation"
).split()
STAGES = ("--stages", "all@0+60 normal=1 mask=1 eikonal=0.1 depth=0.1")
SAME = {"Loss/total": 1e-5, "Loss/component_depth": 1e-5, "Gradients/poses_norm": 1e-3, "Eval/mae": 1e-5}
"""Records that are the same up to so much, relatively: the norm is of a few numbers that nearly cancel."""
EARLY = 16
"""Steps for which these bounds hold; the later ones have ten times the bound.

Every update amplifies the rounding of sums in another order, by an amount that depends on the processor's vector width:
2e-5 at step 23 with AVX-512, below 1e-5 with AVX2.
"""
EXACT = ("Statistics/rays", "Statistics/occupied_frac", "Guard/refused")
"""Records that are the same in every digit: what is decided by them is, too."""


def test_two_processes_train_the_surface_of_one(tmp_path, capsys, run_two):
    maps = write_normal_maps(synthetic_normal_maps(views=4, size=24), tmp_path / "maps")
    words = [*WORDS, *STAGES, "--data", str(maps), "--out"]
    one = tmp_path / "one"
    two = tmp_path / "two"
    assert main([*words, str(one)]) in (0, 1)
    capsys.readouterr()
    printed, codes = run_two(*words, two)
    assert codes == [0, 0], printed

    alone = read_history(one)
    shared = read_history(two)
    second = read_history(two / "ranks" / "1")
    assert shared["Loss/total"].steps.tolist() == list(range(STEPS))
    for name, within in SAME.items():
        one_process = alone[name].values.tolist()
        two_processes = shared[name].values.tolist()
        assert two_processes[:EARLY] == pytest.approx(one_process[:EARLY], rel=within), name
        assert two_processes == pytest.approx(one_process, rel=10 * within), name
    for name in EXACT:
        assert shared[name].values.tolist() == alone[name].values.tolist(), name
    for name in ("Loss/total", "Gradients/poses_norm", *EXACT):
        assert second[name].values.tolist() == shared[name].values.tolist(), name

    poses = [np.load(folder / "products" / "poses.npy") for folder in (one, two)]
    assert np.abs(poses[0] - poses[1]).max() < 1e-5
    assert json.loads((two / "products" / "metrics.json").read_text())["metrics"]
    assert sorted(path.name for path in (two / "products").iterdir()) == sorted(
        path.name for path in (one / "products").iterdir()
    )
    written = {path.name for path in (two / "ranks" / "1").iterdir()}
    assert not written & {"poses", "products", "normals", "meshes_validation", "checkpoints"}
    assert not [event for event in read_events(two) if event["kind"] == "validation_failed"]
