"""``fieldwatch export RUN --to ...``: what was trained, or what was recorded, as files for other programs."""

from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Literal, TypeGuard

import tyro

from fieldwatch.cli.ending import BadInput, reading_input
from fieldwatch.cli.export_record import export_the_record
from fieldwatch.cli.options import options_of, parse_with_options, refuse_options
from fieldwatch.cli.run_flags import RunFlags, refuse_set
from fieldwatch.record.exports import TARGETS as RECORD
from fieldwatch.record.exports import Target
from fieldwatch.registry import find_pipeline, pipeline_name_of, pipeline_names, working_pipelines

_OF_THE_RECORD = ("run", "to", "out", "overwrite", "json")


@dataclass(frozen=True, kw_only=True)
class Arguments(RunFlags):
    """Write what a run trained or recorded as files for others.

    Example: fieldwatch export runs/bear --to parquet -o bear-record

    Example: fieldwatch export runs/garden --to ply -o garden.ply

    Of every run, a loop of your own included, the record: parquet or csv, a folder of tables with one row per step
    and one column per metric (steps, epochs, events); tensorboard, event files with one clean curve per metric. What a
    resume has voided is left out. Parquet needs pip install 'fieldwatch[parquet]'.

    Of what was trained, the files that the run's pipeline can write. The pages about the pipelines describe them.
    """

    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """The file, or the folder where several are written; default RUN/products/<what>-<step>."""
    overwrite: bool = False
    """Record: replace an export that is there."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = parse_with_options(Arguments, "export_options", "fieldwatch export", arguments, [_target()])
    with reading_input():
        name = pipeline_name_of(chosen.run)
    pipeline = find_pipeline(name) if name in pipeline_names() else None
    targets = (*(pipeline.exports if pipeline else ()), *RECORD)
    if chosen.to not in targets:
        raise BadInput(
            f"--to {chosen.to} is not for {chosen.run}, a run of {name or 'a loop of your own'}: "
            f"use --to {' or --to '.join(targets)}"
        )
    if _is_record(chosen.to):
        _refuse_flags(chosen)
        return export_the_record(chosen.run, chosen.to, chosen.out, overwrite=chosen.overwrite, json=chosen.json)
    if chosen.overwrite:
        raise BadInput(f"--overwrite: it belongs to the record, and --to {chosen.to} replaces its file; leave it out")
    options = options_of(chosen, pipeline)
    assert pipeline is not None  # noqa: S101  only a pipeline has targets beyond those of the record
    return int(pipeline.load("export")(chosen, chosen.to, chosen.out, options))


def _target() -> tuple[str, Any, Any]:
    """Return the field of what to write: the record, or what any installed pipeline exports."""
    trained = (target for pipeline in working_pipelines()[0] for target in pipeline.exports)
    targets = tuple(dict.fromkeys((*RECORD, *trained)))
    kind = Annotated[Literal[targets], tyro.conf.arg(help="What to write.")]  # pyright: ignore[reportInvalidTypeForm]  the choices are known when it runs
    return "to", kind, field()


def _is_record(to: str) -> TypeGuard[Target]:
    return to in RECORD


def _refuse_flags(chosen: Any) -> None:
    """Refuse flags that mean nothing to the record.

    Raises:
        BadInput: names the first one that is set.
    """
    why = f"it is about what was trained, and --to {chosen.to} is the record"
    names = [each.name for each in fields(RunFlags) if each.name not in _OF_THE_RECORD]
    refuse_set(chosen, names, why)
    refuse_options(chosen, why)
