"""``fieldwatch mesh refine RUN MESH``: a mesh and the Gaussians on it, trained together on the run's photos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

from fieldwatch.cli.kit import EXTRA_SINKS, ProfileFlags, preset_of, renamed, spelled_out, train_and_tell
from fieldwatch.files import output_path
from fieldwatch.recon.commands.splats import REFINED
from fieldwatch.recon.pipelines.splats import REFINE_PRESETS, RefineConfig, RefineOptions

PRODUCTS = "refined"
"""Folder, in the run's, of the refinements that were given no other."""
WORDS: Mapping[str, str] = {
    "--refinement-time": "--preset",
    "-g": "--gaussians-per-triangle",
    "-f": "--iterations",
    "--refinement-iterations": "--iterations",
    "-n": "--normal-consistency-weight",
    "--normal-consistency-factor": "--normal-consistency-weight",
    "-o": "--out",
    "--output-dir": "--out",
}
"""Flags of the original scripts, by the name they have here."""


@dataclass(frozen=True, kw_only=True)
class Arguments:
    """Refine a mesh: Gaussians bound to its triangles are trained with its vertices, on the photos of a splats run.

    Example: fieldwatch mesh refine runs/garden runs/garden/mesh/surface.ply --preset short

    Example: fieldwatch mesh refine runs/garden mesh.obj --gaussians-per-triangle 3 --iterations 4000 --out runs/fine

    The Gaussians lie flat on the triangles; pictures pull at them, and they at the vertices, while faces that share an
    edge are kept alike. RUN gives photos, cameras, the split, and the colours to begin with; MESH (.ply, .obj) is in
    its units. Neither is changed.

    The outcome is a run folder like any other: `fieldwatch resume`, `eval`, `health`, `memory`, `tensorboard`, `infer
    splats` and `export` open it. products/ has the mesh with colours (refined_mesh.ply), the Gaussians for viewers
    (point_cloud.ply), SuGaR's refined .pt, renders and a turntable. Flags of the original scripts (--refinement-time
    short, -g, -f) work.

    Exits with 0 when it has finished (warnings are printed), 1 with an error among the findings, or with a warning and
    --strict, 2 for bad input, 3 when training could not go on.
    """

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a splats run."""
    mesh: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MESH")]
    """The mesh."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Run folder; default RUN/refined/<name of the mesh>-<preset>. One that holds a refinement is continued."""
    preset: Literal["short", "medium", "long", "parity"] = "short"
    """short, medium, long: 2000, 7000, 15,000 steps; parity: the original's 15,000, slower to begin."""
    options: RefineOptions = field(default_factory=REFINE_PRESETS["short"])
    profile: ProfileFlags = field(default_factory=ProfileFlags)
    resume: Literal["auto", "never", "must", "start-over"] = "auto"
    """Continue a refinement found in --out: auto (if there is one), must (there has to be one), never; start-over moves
    its checkpoints aside and begins at step 0."""
    csv: bool = False
    """Also write every value to metrics.csv."""
    wandb: bool = False
    """Also log to Weights & Biases (WANDB_MODE=offline needs no network)."""
    mlflow: bool = False
    """Also log to MLflow, into mlflow.db."""
    strict: bool = False
    """Exit with 1 for warnings, too."""
    json: bool = False
    """Print the outcome as JSON at the end, and nothing else on standard output."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen, preset = parse(arguments)
    return train_and_tell(
        REFINED,
        config_of(chosen, chosen.options),
        chosen.out or output_path(chosen.run, PRODUCTS, f"{chosen.mesh.stem}-{chosen.preset}"),
        preset=config_of(chosen, preset),
        resume=chosen.resume,
        extra_sinks=[name for name in EXTRA_SINKS if getattr(chosen, name)],
        as_json=chosen.json,
        profile=chosen.profile.chosen(),
        strict=chosen.strict,
    )


def parse(arguments: Sequence[str]) -> tuple[Arguments, RefineOptions]:
    """Read a command line; returns what was chosen, and the preset it was chosen from.

    Raises:
        BadInput: a preset that is not known.
    """
    words = spelled_out(renamed(arguments, WORDS))
    preset = preset_of(words, {**REFINE_PRESETS, "default": REFINE_PRESETS["short"]})
    chosen = tyro.cli(
        _beginning_with(preset), prog="fieldwatch mesh refine", args=words, config=(tyro.conf.OmitArgPrefixes,)
    )
    return chosen, preset


def _beginning_with(preset: RefineOptions) -> type[Arguments]:
    """The command line with a preset's settings for those that are not given."""
    options = ("options", RefineOptions, field(default=preset))
    explained = {"__doc__": Arguments.__doc__}
    return make_dataclass("Arguments", [options], bases=(Arguments,), frozen=True, kw_only=True, namespace=explained)


def config_of(chosen: Arguments, options: RefineOptions) -> RefineConfig:
    """Put run, mesh and settings together; with absolute paths, so that a resume finds them from anywhere."""
    return RefineConfig.of(chosen.run.expanduser().absolute(), chosen.mesh.expanduser().absolute(), options)
