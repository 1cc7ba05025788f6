"""``fieldwatch mesh refine RUN MESH``: train a mesh together with the Gaussians bound to it, on the run's photos."""

from collections.abc import Sequence

from fieldwatch.cli.kit import read_flags, spelled_out, train_and_report
from fieldwatch.files import output_path
from fieldwatch.recon.commands.migrate.mesh import translate_refine
from fieldwatch.recon.commands.splats import REFINED
from fieldwatch.recon.commands.splats.flags import RefineFlags, refine_flags, refine_preset
from fieldwatch.recon.pipelines.splats import RefineConfig, RefineOptions

PRODUCTS = "refined"
"""Subfolder of the run for refinements without ``--out``."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen, preset = parse(arguments)
    return train_and_report(
        REFINED,
        config_of(chosen, chosen.refinement),
        chosen.out or output_path(chosen.run, PRODUCTS, f"{chosen.mesh.stem}-{chosen.preset}"),
        chosen,
        preset=config_of(chosen, preset),
        resume=chosen.resume,
    )


def parse(arguments: Sequence[str]) -> tuple[RefineFlags, RefineOptions]:
    """Read a command line; return the flags, and the preset from which they start.

    Raises:
        BadInput: there is no such preset.
    """
    # The original flags are renamed first; then the preset decides the defaults.
    words = spelled_out(translate_refine(arguments))
    return read_flags(refine_flags(words), prog="fieldwatch mesh refine", arguments=words), refine_preset(words)


def config_of(chosen: RefineFlags, options: RefineOptions) -> RefineConfig:
    """Combine run, mesh and settings; paths are absolute, so that a resumed run finds them from any folder."""
    return RefineConfig.of(chosen.run.expanduser().absolute(), chosen.mesh.expanduser().absolute(), options)
