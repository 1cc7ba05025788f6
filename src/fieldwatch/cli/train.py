"""``fieldwatch train NAME``: the one training command, with the settings of an installed pipeline as its flags."""

from collections.abc import Sequence

from fieldwatch.cli.train_flags import parse
from fieldwatch.cli.training import train_and_report
from fieldwatch.registry import find_pipeline


def run(name: str, arguments: Sequence[str]) -> int:
    """Train with an installed pipeline.

    Raises:
        InputError: the pipeline is not installed, or the command line or the input cannot be used.
        PipelineError: the pipeline's package cannot be used.
    """
    chosen = parse(find_pipeline(name), arguments)
    return train_and_report(
        chosen.pipeline,
        chosen.config,
        chosen.out,
        chosen.flags,
        preset=chosen.preset,
        resume=chosen.flags.resume,
        notes=chosen.line.notes,
    )
