"""Every block of commands of README, the tour and the video page is run as it stands, on small data, made shorter.

A block that cannot be run here says so in the page: `<!-- not run: why -->` before it. `<!-- exit: 1: why -->` says
which code its last line ends with (0 otherwise; trainings may end with 1: so few steps find something). Lines of
`fieldwatch` run in this process, those of `python` in one that has imported torch, all others in a shell.
"""

import os
import re
import runpy
import shlex
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch import Checkpoints, read_history
from fieldwatch.cli import main
from fieldwatch.recon.data import solid_photos
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.mesh import implicit_surface, write_mesh
from fieldwatch.recon.pipelines.splats import Gaussians, SplatModel, SplatsConfig, prepare_scene
from fieldwatch.recon.pipelines.splats.start import start_run
from small_products import small_products

ROOT = Path(__file__).parents[2]
NOT_RUN = {
    ("README.md", "make demo"): "make a .venv",
    ("docs/tour.md", "cd fieldwatch"): "makes a .venv",
    ("docs/video.md", "fieldwatch train video --preset demo"): "minutes each",
}
"""Blocks that are not run: how they begin, and what their marker says."""
VIDEO = (
    "--epochs 2 --rows 2 --columns 2 --data-split 7_7_8 --teacher descriptor --batch 4 --between-weight 0 "
    "--grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 --grid-periods 1 2 --grid-static 4 0 "
    "--grid-blocks 1 1 --grid-kernel 3 --cache cache --device cpu"
)
SPLATS = "--schedule-scale 0.0005 --device cpu --threads 1 --turntable 0 --growth-cap 1000 --test-iterations 7000"
NORMALS = (
    "--steps 8 --threads 1 --device cpu --levels 3 --first-levels 1 --base-resolution 4 --finest-resolution 12 "
    "--table-bits 10 --hidden 16 --grid-resolution 16 --rays 60 --views-per-step 2 "
    "--views-per-graph 1 --mesh-resolution 12 --mesh-at 0 --evaluate-at 0 --poses-at 0 --turntable 0"
)
SHORTER = {
    "train video": VIDEO,
    "train splats --out": f"{SPLATS} --views 6 --held-out 3",
    "train splats": f"{SPLATS} --held-out 4",
    "train normals --out": f"{NORMALS} --views 3 --size 24",
    "train normals": NORMALS,
    "data render-normals": "--views 3 --size 24",
    "infer splats": "--frames 2",
    "infer video": "",
    "eval": "--positions-frames 1 --device cpu",
    "mesh extract": "--resolution 36 --points 8000 --triangles 400 --no-pictures",
    "mesh refine": "--device cpu --threads 1 --turntable 0 --iterations 4 --degree 1",
    "mesh texture": "--layout squares --size 64 --device cpu",
    "mesh view": "--size 24 --seconds 0.1",
    "tensorboard": "--print",
    "memory": "",
}
"""What makes a command short: words that come after its own, by how it begins; the first that fits."""
TRAINS = ("train", "resume", "mesh", "health", "watch", "report", "compare", "doctor")
"""Commands that may end with 1, findings: the runs are too short to be healthy."""
_BLOCK = re.compile(
    r"(?:<!-- (?P<kind>not run|exit): (?P<told>[^>]*) -->\n)?```(?P<language>\w*)\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A block of a page: its section, language and text, and what the page says about it."""

    page: str
    section: str
    language: str
    text: str
    kind: str
    told: str

    @property
    def lines(self):
        return [line for line in re.sub(r"\\\n\s*", " ", self.text).splitlines() if line.strip()]


def blocks_of(page):
    text = (ROOT / page).read_text()
    found = []
    for match in _BLOCK.finditer(text):
        section = re.findall(r"^#+ (.+)$", text[: match.start()], re.MULTILINE)[-1]
        kind = match["kind"] or ""
        told = match["told"] or ""
        found.append(Block(page, section, match["language"], match["text"], kind, told))
    return found


def run_blocks(page, section=None):
    return [
        block
        for block in blocks_of(page)
        if block.kind != "not run" and block.language != "diff" and section in (None, block.section)
    ]


def shorter(words):
    """A command line with what makes it short."""
    line = " ".join(words)
    return [*words, *next((more.split() for begin, more in SHORTER.items() if line.startswith(begin)), [])]


def run_line(line, codes, python):
    """Run a line; it has to end with one of the codes."""
    words = shlex.split(line, comments=True)
    plain = not set(words) & {">", "|", "&&"}
    if words[0] == "fieldwatch" and plain:
        try:
            code = main(shorter(words[1:]))
        except SystemExit as ended:
            code = ended.code
        allowed = codes or ({0, 1} if words[1] in TRAINS else {0})
    elif words[0] == "python" and plain:
        code = python(*words[1:]).returncode
        allowed = codes or {0}
    else:
        code = subprocess.run(["bash", "-e", "-o", "pipefail", "-c", line], check=False, timeout=120).returncode
        allowed = codes or {0}
    assert code in allowed, f"{line!r} ended with {code}"


def run_block(block, python):
    if block.language == "python":
        assert python("-c", block.text).returncode == 0
        return
    for line in block.lines:
        last = line is block.lines[-1]
        codes = (
            {int(code) for code in re.findall(r"\b\d+\b", block.told.partition(":")[0])}
            if block.kind == "exit"
            else set()
        )
        run_line(line, codes if last else set(), python)


@pytest.fixture
def scratch(tmp_path, monkeypatch):
    """An empty folder to be in, the program on the PATH, the examples beside."""
    monkeypatch.chdir(tmp_path)
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    for name in ("python", "fieldwatch"):
        words = "-m fieldwatch " if name == "fieldwatch" else ""
        (bin_folder / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words}"$@"\n')
        (bin_folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{bin_folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(ROOT / "src"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples", ignore=shutil.ignore_patterns("__pycache__"))
    with small_products():
        yield tmp_path


def make_frames(folder):
    folder.mkdir()
    y, x = np.mgrid[0:32, 0:64] / 32
    for i in range(8):
        waves = np.stack([np.sin(6 * x + i / 3), np.cos(5 * y - i / 4), np.sin(4 * (x + y) + i / 5)], axis=-1)
        Image.fromarray(np.round(127.5 + 110 * waves).astype(np.uint8)).save(folder / f"{i:04d}.png")


def make_garden(folder):
    write_colmap(folder, solid_photos(views=8, size=24, points=80, samples=1))


def make_mesh(file):
    def distance(points):
        return np.linalg.norm(points, axis=1) - 0.5

    write_mesh(file, implicit_surface(distance, -np.ones(3), np.ones(3), resolution=16))


def make_opaque(folder):
    """A run of opaque Gaussians on the built-in scene's points: one of few steps has no surface."""
    config = SplatsConfig(views=9, held_out=3, device="cpu", schedule_scale=0.001)
    scene = prepare_scene(config)
    gaussians = Gaussians.from_points(scene.photos.points, scene.photos.colors, degree=1, opacity=0.9)
    with start_run(config, scene, folder, sinks=()) as run:
        run.track(**SplatModel(gaussians, scene.background).checkpoint_items())
        run.resume()
        for _ in run.steps(1):
            run.save_after_step({"psnr": 1.0})


def make_two_runs(folder):
    for name in ("mine", "other"):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["after.py", str(folder / name)])
            runpy.run_path("examples/adopt_torch/after.py", run_name="__main__")


NEEDS = {
    "Put it into your own loop": {},
    "Train a reconstruction": {"frames": make_frames, "garden": make_garden},
    "From Gaussians to a textured mesh": {"runs/garden": make_opaque},
    "See what it does": {"runs": make_two_runs},
    "Never lose a run": {"garden": make_garden},
}
"""What the sections of README name that the reader has, made small."""


@pytest.mark.parametrize("section", NEEDS)
def test_every_block_of_readme_runs(section, scratch, python):
    for place, make in NEEDS[section].items():
        make(scratch / place)
    blocks = run_blocks("README.md", section)
    assert blocks
    for block in blocks:
        run_block(block, python)


def test_every_block_of_the_tour_runs_in_its_order(scratch, python):
    for block in run_blocks("docs/tour.md"):
        run_block(block, python)
    assert (scratch / "first.html").stat().st_size > 10_000
    assert "</html>" in (scratch / "first.html").read_text()


def test_every_block_of_the_video_page_runs(scratch, python):
    make_frames(scratch / "frames")
    run_line("fieldwatch train video --data frames/ --out runs/mine", set(), python)
    for block in run_blocks("docs/video.md"):
        run_block(block, python)


KILLED_AFTER = """
import os, runpy, signal, sys
from fieldwatch.run.session import Session
end_step = Session.end_step
def end_or_die(session):
    end_step(session)
    if session.log.step_index + 1 == int(sys.argv[1]):
        os.kill(os.getpid(), signal.SIGKILL)
Session.end_step = end_or_die
runpy.run_path("loop.py", run_name="__main__")
"""


def test_the_recipe_for_data_loaders_goes_on_to_the_same_weights_after_a_kill(scratch, python):
    (block,) = [block for block in run_blocks("docs/adopt.md", "Data loaders") if block.language == "python"]
    script = block.text.replace('Run("runs/curve")', 'Run("runs/curve", saving=Saving(every=10))')
    script = f"from fieldwatch import Saving\n{script}"
    codes = []
    for place, seed, stop in (("whole", 0, -1), ("cut", 0, 37), ("cut", 5, -1)):  # another process, other numbers
        (scratch / place).mkdir(exist_ok=True)
        (scratch / place / "loop.py").write_text(f"import torch\ntorch.manual_seed({seed})\n{script}")
        codes.append(python("-c", KILLED_AFTER, stop, folder=scratch / place).returncode)
    assert codes == [0, -signal.SIGKILL, 0]
    stored = [Checkpoints(scratch / place / "runs/curve/checkpoints").read("last") for place in ("whole", "cut")]
    weights = [one["model"] for one in stored]
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    losses = [read_history(scratch / place / "runs/curve")["Loss/total"].values for place in ("whole", "cut")]
    assert losses[0].tolist() == losses[1].tolist()


def test_blocks_that_are_not_run_are_these_and_say_why():
    pages = ("README.md", "docs/tour.md", "docs/video.md")
    skipped = [block for page in pages for block in blocks_of(page) if block.kind == "not run"]
    listed = list(NOT_RUN.items())
    assert len(skipped) == len(listed)
    for block, ((page, begin), reason) in zip(skipped, listed, strict=True):
        assert (block.page, block.text.startswith(begin)) == (page, True)
        assert reason in block.told


def test_every_section_of_readme_with_a_block_is_run():
    assert {block.section for block in run_blocks("README.md")} == set(NEEDS)


def test_blocks_and_their_marks_are_read(tmp_path, monkeypatch):
    (tmp_path / "page.md").write_text(
        "# A\n\n<!-- exit: 1 at its end -->\n```\na \\\n  b\nc\n```\n## B\n```python\nx\n```\n"
    )
    monkeypatch.setattr(f"{__name__}.ROOT", tmp_path)
    first, second = blocks_of("page.md")
    assert (first.section, first.kind, first.lines) == ("A", "exit", ["a  b", "c"])
    assert (second.section, second.kind, second.language) == ("B", "", "python")
