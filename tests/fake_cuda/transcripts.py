"""What the first commands say on machines with and without a GPU, for docs/gpu.md.

    python tests/fake_cuda/transcripts.py            # print
    python tests/fake_cuda/transcripts.py --write    # ... into docs/gpu.md

Answers of nvidia-smi and of pip are recorded ones. torch's view of a card is that of the pretended device. Images of
gsplat, whose kernels need a card, are rendered by torch's operations.
"""

import contextlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import textwrap
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parents[1]))

from fake_cuda.conftest import pretended_gpu, share_trials
from fake_cuda.device import FakeCuda
from fake_cuda.training import RUNS, train, write_scene
from fieldwatch.cli.doctor_checks import about_the_gpu, torch_build, unused_gpu
from fieldwatch.recon.commands import gpu
from fieldwatch.recon.pipelines.splats import start
from fieldwatch.recon.render.gpu import compilation
from fieldwatch.recon.render.splats import gsplat_problem, rasterization
from fieldwatch.recon.render.splats.batched import BATCHED

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "gpu.md"
BEGIN = "<!-- transcripts: python tests/fake_cuda/transcripts.py --write -->\n"
END = "<!-- end of the transcripts -->\n"
WIDTH = 138
DRIVER = "580.65.06"


def make_env(folder: Path, answer: str | None, *, build: str, nvcc: bool = False) -> Iterator[str]:
    """Yield what `make env` says.

    Args:
        folder: scratch folder.
        answer: commands of nvidia-smi; None is a machine without it.
        build: version of torch that is installed there.
        nvcc: whether nvcc is installed.
    """
    project = Path(tempfile.mkdtemp(dir=folder))
    shutil.copytree(ROOT / "scripts", project / "scripts")
    shutil.copy(ROOT / "constraints.txt", project)
    programs = project / "programs"
    for name in ("bash", "cat", "cut", "dirname", "head", "sed", "sort", "tail", "touch", "tr", "uname"):
        _write_program(programs / name, f'exec {shutil.which(name)} "$@"')
    _write_program(project / ".venv" / "bin" / "pip", "exit 0")
    _write_program(
        project / ".venv" / "bin" / "python", f'case "$*" in *torch*) echo "Python 3.12, torch {build}";; esac'
    )
    if answer is not None:
        _write_program(programs / "nvidia-smi", answer)
    if nvcc:
        _write_program(programs / "nvcc", "exit 0")
    line = [project / "scripts" / "env.sh", "dev"]
    said = subprocess.run(
        line, env={"PATH": str(programs)}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
    )
    yield "$ make env"
    yield from said.stdout.splitlines()


def _write_program(path: Path, commands: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!{shutil.which('bash')}\n{commands}\n")
    path.chmod(0o755)


def doctor(driver: str | None) -> Iterator[str]:
    """Yield the doctor's lines about the GPU, for the driver's version; None is a machine without a card."""
    check = gpu.check_gpu()
    # The time differs each time.
    yield f"{check.label:14} {re.sub(r', [0-9.]+ s;', ';', check.text)}"
    machine = {"gpus": [] if driver is None else [driver], "driver": driver}
    software = {"torch_sees_gpu": check.facts["gpu_step"] is not None, "torch_build": torch_build()}
    for finding in (*about_the_gpu(machine, software), *check.findings):
        yield f"{finding.severity}: {finding.message}"
        yield f"    -> {finding.remedy}"


def first_lines(folder: Path, name: str, *, device: str) -> Iterator[str]:
    """Yield the lines in which a training of splats says where and by what it renders."""
    scene = write_scene(folder / name)
    said = io.StringIO()
    with contextlib.redirect_stdout(said):
        train(RUNS["splats-planar"](scene, folder), folder / f"{name}-run", device=device, stop=0)
    # Without a terminal, notes are wrapped at 80 columns.
    for note in re.findall(r"^  note: (.*?)(?=^\S*  )", said.getvalue(), re.MULTILINE | re.DOTALL):
        if "GPU" in note:
            yield "note: " + " ".join(note.split())


@contextmanager
def without_nvrtc(device: FakeCuda) -> Iterator[None]:
    """Fail to compile every kernel, as on a machine on which the library of the compiler is missing."""

    def launch(source: Path, *_: Any) -> None:
        compilation._nvrtc.cache_clear()
        with mock.patch.object(compilation, "_candidates", return_value=["libnvrtc-that-is-not-there.so"]):
            compilation.compiled(source, "sm_89")

    with mock.patch.object(device.emulator, "launch", launch):
        yield
    compilation._nvrtc.cache_clear()


@contextmanager
def gsplat_without_nvcc() -> Iterator[None]:
    """A gsplat that was installed without nvcc: the module is there, and its kernels are None."""
    module: Any = ModuleType("gsplat")
    kernels: Any = None
    module.isect_tiles = lambda *_, **__: kernels.intersect_tile()
    with mock.patch.dict(sys.modules, {"gsplat": module}):
        gsplat_problem.cache_clear()
        yield
    gsplat_problem.cache_clear()


@contextmanager
def gsplat_that_works() -> Iterator[None]:
    """A gsplat whose kernels nvcc compiled: it is asked nothing, and torch's operations render its images."""
    with (
        mock.patch.object(gpu, "gsplat_problem", return_value=None),
        mock.patch.object(start, "gsplat_problem", return_value=None),
        mock.patch.object(rasterization, "gsplat_problem", return_value=None),
        mock.patch.object(rasterization, "GSPLAT", BATCHED),
    ):
        yield


def no_card(folder: Path) -> Iterator[str]:
    """A machine without a card."""
    yield from make_env(folder, None, build="2.13.0+cpu")
    yield "$ fieldwatch doctor"
    yield from doctor(None)


def old_driver(folder: Path) -> Iterator[str]:
    """A card whose driver is too old for today's torch."""
    driver = "470.82.01"
    query = 'case "$*" in *compute_cap*) echo "not a valid field"; exit 2;; esac\n'
    yield from make_env(folder, f'{query}echo "{driver}"', build="2.13.0+cpu")
    yield "$ fieldwatch doctor"
    yield from doctor(driver)
    yield "$ fieldwatch train splats"
    with mock.patch.dict("os.environ", {"CUDA_VISIBLE_DEVICES": "0"}):
        yield from unused_gpu([driver], driver)


def card_without_nvcc(folder: Path) -> Iterator[str]:
    """A card with a recent driver."""
    yield from make_env(folder, f'echo "{DRIVER}, 8.9"', build="2.13.0+cu130")
    with pretended_gpu() as device:
        share_trials(device)
        yield from first_commands(folder, "card")


def card_with_all(folder: Path) -> Iterator[str]:
    """A card with a recent driver, nvcc, and a gsplat that works: our own kernels come first."""
    yield from make_env(folder, f'echo "{DRIVER}, 8.9"', build="2.13.0+cu130", nvcc=True)
    with pretended_gpu() as device, gsplat_that_works():
        share_trials(device)
        yield from first_commands(folder, "all")


def card_without_compiler(folder: Path) -> Iterator[str]:
    """A card on which our own kernels cannot be compiled, and gsplat was installed without nvcc."""
    with pretended_gpu() as device, without_nvrtc(device), gsplat_without_nvcc():
        yield from first_commands(folder, "differing")


def card_with_gsplat_alone(folder: Path) -> Iterator[str]:
    """A card on which our own kernels cannot be compiled, and gsplat works."""
    with pretended_gpu() as device, without_nvrtc(device), gsplat_that_works():
        yield from first_commands(folder, "gsplat")


def first_commands(folder: Path, name: str) -> Iterator[str]:
    """Yield what the doctor and a training say on a card."""
    yield "$ fieldwatch doctor"
    yield from doctor(DRIVER)
    yield "$ fieldwatch train splats"
    yield from [*first_lines(folder, name, device="auto")] or ["(nothing: our own kernels render)"]


MACHINES: dict[str, Callable[[Path], Iterator[str]]] = {
    "No card": no_card,
    "A card with a driver that is too old": old_driver,
    "A card with a recent driver, and no nvcc": card_without_nvcc,
    "A card with all: a recent driver, nvcc, and a gsplat that works": card_with_all,
    "The card without nvcc, if NVRTC is missing too": card_without_compiler,
    "The card with all, if NVRTC is missing": card_with_gsplat_alone,
}


def transcripts() -> str:
    """Return all transcripts in Markdown."""
    parts: list[str] = []
    with tempfile.TemporaryDirectory() as place, mock.patch.dict("os.environ", {"XDG_STATE_HOME": place}):
        for title, lines in MACHINES.items():
            with contextlib.redirect_stderr(io.StringIO()):
                said = "\n".join(textwrap.fill(line, WIDTH, subsequent_indent="    ") for line in lines(Path(place)))
            parts.append(f"{title}:\n\n```\n{said}\n```\n")
    return "\n".join(parts)


def main() -> int:
    """Print the transcripts, or write them into the page."""
    text = transcripts()
    if sys.argv[1:] == ["--write"]:
        page = PAGE.read_text("utf-8")
        before, _, rest = page.partition(BEGIN)
        _, _, after = rest.partition(END)
        PAGE.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", "utf-8")
        print(PAGE)
    else:
        print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
