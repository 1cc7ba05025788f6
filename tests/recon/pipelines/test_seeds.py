"""One seed, one stored state: fresh runs also agree in the global generators of Python and numpy."""

import random
import re
from pathlib import Path

import numpy as np

import fieldwatch.recon.pipelines
from fieldwatch import Checkpoints, preserve_random_state
from fieldwatch.cli import main

FOLDER = Path(fieldwatch.recon.pipelines.__file__).parent
TRAINING = (
    "train splats --views 4 --held-out 0 --turntable 0 --schedule-scale 0.0005 --coarse-iterations 4000 --degree 0"
)


def test_two_fresh_runs_store_the_same_state(tmp_path):
    stored = []
    for chance in (1, 2):
        folder = tmp_path / str(chance)
        with preserve_random_state():
            random.seed(chance)
            np.random.seed(chance)  # noqa: NPY002
            assert main(f"{TRAINING} --out {folder}".split()) in (0, 1)
        stored.append(Checkpoints(folder / "checkpoints").read("last")["random_state"])
    first, second = stored
    assert first["python"] == second["python"]
    assert np.array_equal(first["numpy"]["state"]["key"], second["numpy"]["state"]["key"])
    assert first["torch"].equal(second["torch"])


def test_no_pipeline_seeds_torch_alone():
    found = [path.name for path in FOLDER.rglob("*.py") if re.search(r"\btorch\.manual_seed\(", path.read_text())]
    assert found == []
