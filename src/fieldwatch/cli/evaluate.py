"""``fieldwatch eval RUN``: evaluate a checkpoint; the result is printed, and written as tables and JSON."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import orjson
from rich.text import Text

from fieldwatch.base import output_path, write_file
from fieldwatch.cli.evaluate_flags import EvaluateFlags, evaluate_flags
from fieldwatch.cli.flag_help import read_flags
from fieldwatch.cli.open_run import open_stored
from fieldwatch.cli.options import options_of
from fieldwatch.cli.output import print_json, print_paths, reading_input
from fieldwatch.cli.quality import quality_of
from fieldwatch.cli.training import check_writable
from fieldwatch.record import Terminal
from fieldwatch.registry import EvaluationRequest, Pipeline, Scores, pipeline_of

METRICS = "metrics"


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(evaluate_flags(arguments), prog="fieldwatch eval", arguments=arguments)
    with reading_input():
        pipeline = pipeline_of(chosen.run, "evaluate")
        options = options_of(chosen, pipeline)
        config = pipeline.stored_config(chosen.run)
    # With --json, standard output holds the JSON only.
    console = Terminal(stderr=chosen.json)
    scores = evaluate(pipeline, chosen, config, options, console)
    files = {name: path.absolute() for name, path in with_metrics(scores, chosen).items()}
    if chosen.json:
        about = {"run": chosen.run, "step": scores.step, METRICS: scores.metrics}
        print_json({**about, **scores.details, "files": files})
        return 0
    headline = f", {scores.headline}" if scores.headline else ""
    console.print(f"{chosen.run}, step {scores.step}{headline}", soft_wrap=True, markup=False)
    for part in scores.display or (quality_of(pipeline, scores.metrics),):
        console.print(Text(part) if isinstance(part, str) else part, soft_wrap=isinstance(part, str))
    print_paths(console, files)
    return 0


def evaluate(pipeline: Pipeline, chosen: EvaluateFlags, config: object, options: object, console: Terminal) -> Scores:
    """Evaluate a checkpoint with the function of its pipeline.

    Raises:
        BadInput: there is no such checkpoint, its data cannot be read, or the files cannot be written.
    """
    function = pipeline.load("evaluate")

    def answer(folder: Path, which: object) -> Scores:
        # An evaluation may take minutes: check the folder first.
        check_writable(chosen.out or output_path(folder, "products"))
        request = EvaluationRequest(
            run=folder,
            config=config,
            checkpoint=which,  # pyright: ignore[reportArgumentType]  open_stored has read it
            device=chosen.device,
            out=chosen.out,
            options=options,
            console=console,
        )
        return function(request)

    return open_stored(answer, chosen.run, chosen.checkpoint)


def with_metrics(scores: Scores, chosen: EvaluateFlags) -> Mapping[str, Path]:
    """Return the files of an evaluation; write metrics.json if the pipeline has not."""
    if METRICS in scores.files:
        return scores.files
    folder = chosen.out or output_path(chosen.run, "products", f"eval-{scores.step}")
    stored = {"step": scores.step, METRICS: scores.metrics, **scores.details}
    data = orjson.dumps(stored, option=orjson.OPT_INDENT_2 | orjson.OPT_SERIALIZE_NUMPY) + b"\n"
    return {**scores.files, METRICS: write_file(output_path(folder, "metrics.json"), data)}
