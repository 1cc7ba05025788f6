"""Checks of a plan before it starts: flags (by the pipeline's parser), input files, and resources of each scene."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from fieldwatch.cli.output import BadInput, reading_input
from fieldwatch.cli.train import parse
from fieldwatch.many import LEDGER, Capacity, PlannedScene, changed_scenes, read_ledger
from fieldwatch.registry import find_pipeline


def check_scene(scene: PlannedScene) -> None:
    """Refuse unknown flags, invalid values and missing input.

    Raises:
        BadInput: a flag or an input is wrong; the message names the scene and the key.
    """
    pipeline = find_pipeline(scene.pipeline)
    for key in pipeline.inputs:
        for word in scene.flags.get(key, ()):
            path = Path(word.partition("=")[2])
            if not path.exists():
                raise BadInput(f"scene {scene.name!r}: {key} = {str(path)!r}: there is no such file or folder")
    why = refusal(scene, scene.arguments)
    if not why:
        return
    # Parse the flags one at a time: if only one is refused, the message can name its key.
    reasons = {key: refusal(scene, arguments) for key, arguments in scene.flags.items()}
    wrong = {key: reason for key, reason in reasons.items() if reason}
    # None is wrong by itself (they conflict), or several are: report the parser's message for the whole line.
    if len(wrong) != 1:
        raise BadInput(f"scene {scene.name!r}: `fieldwatch train {scene.pipeline}` refuses its flags: {why}")
    key, why = next(iter(wrong.items()))
    raise BadInput(f"scene {scene.name!r}: {key}: `fieldwatch train {scene.pipeline}` refuses it: {why}")


def refusal(scene: PlannedScene, arguments: Sequence[str]) -> str:
    """Return the parser's reason for refusing a command line; empty if it is accepted."""
    # tyro prints its message and exits; both are captured.
    output = io.StringIO()
    try:
        with redirect_stderr(output), redirect_stdout(output):
            parse(find_pipeline(scene.pipeline), arguments)
    except BadInput as error:
        return str(error)
    except SystemExit as ended:
        return _message(output.getvalue()) if ended.code else "it only requests the help"
    return ""


def _message(text: str) -> str:
    """Extract the reason from tyro's output: the lines below the title and above the hints."""
    # tyro draws a box around its message, and its last lines refer to the help.
    lines = [line.strip(" │╭╮╰╯─-|") for line in text.splitlines()]
    filled = [line for line in lines if line]
    ends = [i for i, line in enumerate(filled) if line.startswith(("Argument helptext", "For full helptext"))]
    return " ".join(filled[1 : min(ends, default=len(filled))]) or "the parser gave no reason"


def check_begun(scenes: Sequence[PlannedScene], out: Path) -> None:
    """Refuse a scene that has already finished with other flags: its run would not match the plan.

    Raises:
        BadInput: the flags changed; the message names the scene, the old flags and the new ones.
    """
    with reading_input():
        changed = changed_scenes(scenes, read_ledger(out / LEDGER))
    for name, (then, now) in changed.items():
        raise BadInput(
            f"scene {name!r} was finished in {out / name} as `train {then}`, and is now `train {now}`: rename it, "
            "choose another --out, or restore its flags"
        )


def check_room(scenes: Sequence[PlannedScene], capacity: Capacity, *, whole_gpus: bool) -> None:
    """Refuse a scene that can never be scheduled; an autoscaling cluster may still add nodes.

    Raises:
        BadInput: a resource is too small; the message names the scene, the request and the capacity.
    """
    for scene in scenes:
        requests = {"cpus": (scene.cpus, capacity.cpus), "gpus": (scene.gpus or 0.0, capacity.gpus)}
        requests["memory"] = (scene.memory_gib, capacity.memory_bytes / 2**30)
        for key, (request, available) in requests.items():
            if request > available and not capacity.grows:
                raise BadInput(f"scene {scene.name!r}: {key} must be at most {available:g}, got {request:g}")
        # Plain processes get GPUs by CUDA_VISIBLE_DEVICES, which cannot split one.
        if whole_gpus and scene.gpus is not None and scene.gpus != int(scene.gpus):
            raise BadInput(f"scene {scene.name!r}: gpus must be a whole number without Ray, got {scene.gpus:g}")
