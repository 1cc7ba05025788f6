"""``fieldwatch mesh refine RUN MESH``: a mesh and the Gaussians on it, trained together on the run's photos."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from fieldwatch.cli.kit import (
    FlagGroups,
    NewRunFlags,
    merged_groups,
    preset_of,
    read_flags,
    renamed,
    spelled_out,
    train_and_report,
)
from fieldwatch.files import output_path
from fieldwatch.recon.commands.splats import REFINED
from fieldwatch.recon.pipelines.splats import REFINE_PRESETS, RefineConfig, RefineOptions

PRODUCTS = "refined"
"""Folder, in the run's, of the refinements that were given no other."""
ORIGINAL_FLAGS: Mapping[str, str] = {
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
class Arguments(NewRunFlags):
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

    main_flags: ClassVar[FlagGroups] = merged_groups(
        {
            "data and output": (),
            "method and quality": (
                "gaussians_per_triangle", "normal_consistency_weight", "first_colours", "dssim", "degree",
            ),
            "run length and evaluation": ("iterations", "test_iterations", "turntable"),
            "saving and resuming": ("checkpoint_interval", "keep_last", "keep_best"),
            "machine": ("device", "threads", "seed"),
        },
        NewRunFlags.main_flags,
    )  # fmt: skip

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """The folder of a splats run."""
    mesh: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MESH")]
    """The mesh."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Run folder; by default RUN/refined/<name of the mesh>-<preset>. A refinement already there is continued."""
    preset: Literal["short", "medium", "long", "parity"] = "short"
    """short, medium, long: 2000, 7000, 15,000 steps; parity: SuGaR's own 15,000 steps and start."""
    options: RefineOptions = field(default_factory=REFINE_PRESETS["short"])


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen, preset = parse(arguments)
    return train_and_report(
        REFINED,
        config_of(chosen, chosen.options),
        chosen.out or output_path(chosen.run, PRODUCTS, f"{chosen.mesh.stem}-{chosen.preset}"),
        chosen,
        preset=config_of(chosen, preset),
        resume=chosen.resume,
    )


def parse(arguments: Sequence[str]) -> tuple[Arguments, RefineOptions]:
    """Read a command line; returns what was chosen, and the preset it was chosen from.

    Raises:
        BadInput: a preset that is not known.
    """
    words = spelled_out(renamed(arguments, ORIGINAL_FLAGS))
    preset = preset_of(words, {**REFINE_PRESETS, "default": REFINE_PRESETS["short"]})
    chosen = read_flags(_arguments_with_defaults(preset), prog="fieldwatch mesh refine", arguments=words)
    return chosen, preset


def _arguments_with_defaults(preset: RefineOptions) -> type[Arguments]:
    """The command line with a preset's settings for those that are not given."""
    options = ("options", RefineOptions, field(default=preset))
    explained = {"__doc__": Arguments.__doc__}
    return make_dataclass("Arguments", [options], bases=(Arguments,), frozen=True, kw_only=True, namespace=explained)


def config_of(chosen: Arguments, options: RefineOptions) -> RefineConfig:
    """Put run, mesh and settings together; with absolute paths, so that a resume finds them from anywhere."""
    return RefineConfig.of(chosen.run.expanduser().absolute(), chosen.mesh.expanduser().absolute(), options)
