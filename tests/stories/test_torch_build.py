"""`make env` asks the driver which build of torch it can run; the answers are recorded ones of nvidia-smi."""

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "torch_build.sh"
OLD_QUERY = 'case "$*" in *compute_cap*) echo "Field \\"compute_cap\\" is not a valid field to query."; exit 2;; esac\n'

MACHINES = {
    "no driver": (None, "+cpu"),
    "a card with all": ('echo "580.65.06, 8.9"', ""),
    "two cards": ('printf "590.44, 12.0\\n590.44, 8.6\\n"', ""),
    "a driver for CUDA 12": ('echo "535.183.01, 8.6"', "+cu126"),
    "a card too old for CUDA 13": ('printf "580.65.06, 8.9\\n580.65.06, 6.1\\n"', "+cu126"),
    "a driver too old for CUDA 12": (OLD_QUERY + 'echo "470.82.01"', "+cpu"),
    "a driver that cannot be reached": (
        'echo "NVIDIA-SMI has failed because it couldn\'t communicate with the NVIDIA driver."; exit 9',
        "+cpu",
    ),
    "a driver without a card": ('echo "No devices were found"', "+cpu"),
}


@pytest.mark.parametrize(("answer", "build"), MACHINES.values(), ids=MACHINES.keys())
def test_the_driver_decides_the_build(tmp_path, answer, build):
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("bash", "cut", "head", "sort", "tr", "uname"):
        (programs / name).symlink_to(Path("/usr/bin") / name)
    if answer is not None:
        (programs / "nvidia-smi").write_text(f"#!/bin/bash\n{answer}\n")
        (programs / "nvidia-smi").chmod(0o755)
    asked = subprocess.run([SCRIPT, "2.13.0"], env={"PATH": str(programs)}, capture_output=True, text=True, check=True)
    requirement, *index = asked.stdout.split()
    assert requirement == f"torch==2.13.0{build}"
    assert index == ([] if not build else ["--extra-index-url", f"https://download.pytorch.org/whl/{build[1:]}"])
    assert len(asked.stderr.splitlines()) == 1
