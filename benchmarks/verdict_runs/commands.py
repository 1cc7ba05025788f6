"""Runs of the three pipelines, through the command line."""

import contextlib
import io
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from fieldwatch import read_history
from fieldwatch.cli import main
from fieldwatch.health.visits import Visits

from .cases import NUMBER, Fault, Healthy, Plant, RefusedError, Train
from .faults import FAULTS
from .scenes import REAL, Spoil

SPLATS = (
    "--device cpu --threads 1 --turntable 0 --degree 1 --held-out 4 "
    "--coarse-iterations 7000 --test-iterations 1500 3000 4500 6000 7000"
)
NORMALS = (
    "--device cpu --threads 1 --turntable 0 --mesh-resolution 24 --mesh-at 0 --evaluate-at 10000 "
    "--checkpoint-interval 30000 --levels 4 --base-resolution 4 --finest-resolution 24 --table-bits 12 --hidden 32 "
    "--grid-resolution 24 --rays 256"
)
VIDEO = (
    "--device cpu --threads 1 --rows 1 --columns 2 --batch 4 --data-split 7_7_8 --teacher descriptor --eval-freq 10 "
    "--checkpoint-epochs 60 --between-weight 0.5 --grid-cells 4 2 --grid-widths 8 8 --grid-channels 4 2 "
    "--grid-periods 1 2 --grid-static 4 0 --grid-blocks 1 1 --grid-kernel 3"
)


def last_value(metric: str, sign: float = 1.0) -> Callable[[Path], float]:
    """Return the figure that is the last value of a metric."""
    return lambda run: sign * float(read_history(run)[metric].values[-1])


def worst_view(run: Path) -> float:
    """Return the late loss of the worst training view over that of the median view, as a negative figure."""
    losses: dict[str, list[float]] = {}
    visits = Visits.of(read_history(run).sample_losses())
    if visits is None:
        return 0.0
    for i in np.flatnonzero(visits.steps >= visits.steps.max() / 2).tolist():
        losses.setdefault(visits.name(i), []).append(float(visits.values[i]))
    medians = [float(np.median(values)) for values in losses.values()]
    return -max(medians) / float(np.median(medians))


FIGURES = {
    "splats": last_value("Test/psnr"),
    "normals": last_value("Eval/mae", -1.0),
    "video": last_value("Eval/Frame/val_psnr"),
}
"""Per pipeline: held-out PSNR, the negative mean angle between normals in degrees, held-out PSNR."""


@dataclass(frozen=True, kw_only=True)
class Command:
    """A command that trains a pipeline on data that is written for it.

    Attributes:
        pipeline: name of the pipeline.
        words: flags.
        write: writes the data; None for the built-in data.
        good: figure that a sound run reaches.
        figure: figure of merit; that of the pipeline if None.
    """

    pipeline: str
    words: str
    write: Spoil | None
    good: float
    figure: Callable[[Path], float] | None = None

    def train(self, *spoils: Spoil, more: str = "") -> Train:
        """Return the training, with spoilt data and further flags."""

        def train(folder: Path, seed: int) -> float:
            words = ["train", self.pipeline, *shlex.split(f"{self.words} {more}"), "--seed", str(seed)]
            if self.write is not None:
                data = folder.parent / "data"
                self.write(data)
                for spoil in spoils:
                    spoil(data)
                words += ["--data", str(data)]
            run_command([*words, "--out", str(folder)])
            return (self.figure or FIGURES[self.pipeline])(folder)

        return train

    def spoilt(
        self,
        name: str,
        fault: str | Fault,
        *spoils: Spoil,
        names: Sequence[str] = (),
        repaired: Callable[[str], Train] | None = None,
    ) -> Plant:
        """Plant a fault in the data; the repair is the sound data, unless another one is given."""
        return Plant(
            name=name,
            fault=fault if isinstance(fault, Fault) else FAULTS[fault],
            broken=self.train(*spoils),
            repaired=repaired or (lambda _: self.train()),
            good=self.good,
            names=tuple(names),
        )

    def flagged(self, name: str, fault: str | Fault, flags: str, *, good: float | None = None, also: str = "") -> Plant:
        """Plant flags; the repair sets those that the remedy names to the advised values, or leaves them out."""

        def repaired(advice: str) -> Train:
            return self.train(more=f"{also} {advised_flags(flags, advice)}")

        return Plant(
            name=name,
            fault=fault if isinstance(fault, Fault) else FAULTS[fault],
            broken=self.train(more=f"{also} {flags}"),
            repaired=repaired,
            good=self.good if good is None else good,
            ideal=" ".join(re.findall(r"--\S+", flags)),
        )

    def healthy(self, name: str, more: str = "") -> Healthy:
        """Return the sound run."""
        return Healthy(name=name, train=self.train(more=more), good=self.good)


def run_command(words: Sequence[str]) -> None:
    """Run a command of fieldwatch in this process.

    Raises:
        RefusedError: the command did not accept its input.
        RuntimeError: the training diverged or failed.
    """
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(printed):
        code = main(list(words))
    print(printed.getvalue())
    if code == 2:
        raise RefusedError(printed.getvalue()[-2000:])
    if code not in {0, 1}:
        raise RuntimeError(f"fieldwatch {' '.join(words[:2])} ended with {code}")


def spot_normals(views: int, size: int, more: str = "") -> Spoil:
    """Return what renders normal maps of the cow, with more flags of `fieldwatch data render-normals`."""

    def write(folder: Path) -> None:
        mesh = REAL / "meshes" / "spot" / "spot_triangulated.obj"
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def advised_flags(flags: str, advice: str) -> str:
    """Return the planted flags with the values of the remedy; a flag that it names without a value is left out.

    Args:
        flags: planted flags, each with its values.
        advice: text of the remedy; flags that it does not name stay as they are planted.
    """
    kept: list[str] = []
    for flag, *values in (part.split() for part in re.findall(r"--\S+(?: (?!--)\S+)*", flags)):
        if not re.search(rf"{re.escape(flag)}(?![\w-])", advice):
            # A remedy may speak of "the learning rate" of a group without naming its flag.
            if not (flag.startswith("--lr") and re.search(r"learning rate", advice, re.IGNORECASE)):
                kept += [flag, *values]
            continue
        value = re.search(rf"{re.escape(flag)} (?:to )?{NUMBER}", advice)
        if value is not None:
            kept += [flag, value.group(1)]
    return " ".join(kept)
