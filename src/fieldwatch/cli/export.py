"""``fieldwatch export RUN --to ...``: write the model or the record of a run as files for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import tyro

from fieldwatch.cli.export_record import export_the_record
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.options import flags_with_options, options_of, refuse_options
from fieldwatch.cli.output import BadInput, reading_input
from fieldwatch.cli.run_flags import RunFlags, refuse_set
from fieldwatch.record.exports import TARGETS as RECORD
from fieldwatch.record.exports import Target
from fieldwatch.registry import find_pipeline, pipeline_name_of, pipeline_names, working_pipelines

_OF_THE_RECORD = ("run", "to", "out", "overwrite", "json")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunFlags):
    """Write the record or the model of a run as files for other programs.

    Example: fieldwatch export runs/bear --to parquet -o bear-record

    Example: fieldwatch export runs/garden --to ply -o garden.ply

    The record of every run, also of your own loop: --to parquet or csv writes a folder of tables with one row per step
    and one column per metric (steps, epochs, events); --to tensorboard writes event files with one curve per metric.
    Steps that were repeated after a resume appear once. Parquet needs pip install 'fieldwatch[parquet]'.

    The model: the formats of the run's pipeline; the pages about the pipelines describe them.
    """

    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """File, or folder for several files; by default RUN/products/<what>-<step>."""
    overwrite: bool = False
    """Record: replace an existing export."""


def flags_class(arguments: Sequence[str]) -> type[Arguments]:
    """Return the flags, including those that pipelines add.

    Raises:
        PipelineError: the package of the pipeline that trained the run cannot be used.
    """
    return flags_with_options(Arguments, "export_options", arguments, [_target()])


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(flags_class(arguments), prog="fieldwatch export", arguments=arguments)
    with reading_input():
        # A pipeline that is not installed here can still have its record exported.
        name = pipeline_name_of(chosen.run)
    pipeline = find_pipeline(name) if name in pipeline_names() else None
    # Every run has a record; the formats of the model depend on the pipeline.
    targets = (*(pipeline.exports if pipeline else ()), *RECORD)
    if chosen.to not in targets:
        raise BadInput(
            f"--to {chosen.to} is not available for {chosen.run}, a run of {name or 'a loop of your own'}: "
            f"use --to {' or --to '.join(targets)}"
        )
    if _is_record(chosen.to):
        _refuse_flags(chosen)
        return export_the_record(chosen.run, chosen.to, chosen.out, overwrite=chosen.overwrite, json=chosen.json)
    if chosen.overwrite:
        raise BadInput(
            f"--overwrite applies to the record only; --to {chosen.to} always replaces its file: leave the flag out"
        )
    # Also refuses the flags of other pipelines.
    options = options_of(chosen, pipeline)
    assert pipeline is not None  # noqa: S101  only a pipeline has targets beyond those of the record
    return int(pipeline.load("export")(chosen, chosen.to, chosen.out, options))


def _target() -> tuple[str, Any, Any]:
    """Return the field ``to``: the formats of the record, and those of all installed pipelines."""
    trained = (target for pipeline in working_pipelines()[0] for target in pipeline.exports)
    targets = tuple(dict.fromkeys((*RECORD, *trained)))
    kind = Annotated[Literal[targets], tyro.conf.arg(help="Format to write.")]  # pyright: ignore[reportInvalidTypeForm]  the choices are known when it runs
    return "to", kind, field()


def _is_record(to: str) -> TypeGuard[Target]:
    return to in RECORD


def _refuse_flags(chosen: Any) -> None:
    """Refuse flags that have no effect on the record.

    Raises:
        BadInput: such a flag is set; the message names the first one.
    """
    why = f"it applies to the model, and --to {chosen.to} writes the record"
    names = [each.name for each in fields(RunFlags) if each.name not in _OF_THE_RECORD]
    refuse_set(chosen, names, why)
    refuse_options(chosen, why)
