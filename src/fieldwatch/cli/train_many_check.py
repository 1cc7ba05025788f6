"""Whether a plan can be done: each scene's flags by its pipeline's own parser, its input, and room for it."""

import io
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from fieldwatch.cli.output import BadInput, reading_input
from fieldwatch.cli.train import parse
from fieldwatch.many import LEDGER, Capacity, PlannedScene, changed_scenes, read_ledger
from fieldwatch.registry import find_pipeline


def check_scene(scene: PlannedScene) -> None:
    """Refuse flags that the pipeline does not take, values it cannot use, and input that is not there.

    Raises:
        BadInput: names the scene and the key.
    """
    pipeline = find_pipeline(scene.pipeline)
    for key in pipeline.inputs:
        for word in scene.flags.get(key, ()):
            path = Path(word.partition("=")[2])
            if not path.exists():
                raise BadInput(f"scene {scene.name!r}: {key} is {str(path)!r}, and there is no such file or folder")
    why = refusal(scene, scene.arguments)
    if not why:
        return
    # One flag at a time: a single culprit can be named by its key.
    reasons = {key: refusal(scene, arguments) for key, arguments in scene.flags.items()}
    wrong = {key: reason for key, reason in reasons.items() if reason}
    if len(wrong) != 1:  # it is about how they go together
        raise BadInput(f"scene {scene.name!r}: `fieldwatch train {scene.pipeline}` refuses its flags: {why}")
    key, why = next(iter(wrong.items()))
    raise BadInput(f"scene {scene.name!r}: {key}: `fieldwatch train {scene.pipeline}` refuses it: {why}")


def refusal(scene: PlannedScene, arguments: Sequence[str]) -> str:
    """Why the pipeline's command line is refused; empty if it is not."""
    output = io.StringIO()
    try:
        with redirect_stderr(output), redirect_stdout(output):
            parse(find_pipeline(scene.pipeline), arguments)
    except BadInput as error:
        return str(error)
    except SystemExit as ended:
        return _message(output.getvalue()) if ended.code else "it only asks for help"
    return ""


def _message(text: str) -> str:
    """The reason in what tyro prints: below the title, above the next rule."""
    # tyro draws a box around its message.
    lines = [line.strip(" │╭╮╰╯─-|") for line in text.splitlines()]
    filled = [line for line in lines if line]
    ends = [i for i, line in enumerate(filled) if line.startswith(("Argument helptext", "For full helptext"))]
    return " ".join(filled[1 : min(ends, default=len(filled))]) or "no reason was given"


def check_begun(scenes: Sequence[PlannedScene], out: Path) -> None:
    """Refuse a scene that was finished with other flags: nobody could tell which of them its run is of.

    Raises:
        BadInput: names the scene, the flags then and the flags now.
    """
    with reading_input():
        changed = changed_scenes(scenes, read_ledger(out / LEDGER))
    for name, (then, now) in changed.items():
        raise BadInput(
            f"scene {name!r} was finished in {out / name} as `train {then}`, and is now `train {now}`: give it another "
            "name, choose another --out, or bring its flags back"
        )


def check_room(scenes: Sequence[PlannedScene], capacity: Capacity, *, whole_gpus: bool) -> None:
    """Refuse a scene for which there is never room; a cluster that grows may get some.

    Raises:
        BadInput: names the scene, what it wants and what there is.
    """
    for scene in scenes:
        wanted = {"cpus": (scene.cpus, capacity.cpus), "gpus": (scene.gpus, capacity.gpus)}
        wanted["memory"] = (scene.memory_gib, capacity.memory_bytes / 2**30)
        for key, (asked, available) in wanted.items():
            if asked > available and not capacity.grows:
                raise BadInput(f"scene {scene.name!r}: {key} is {asked:g}, and there is {available:g}: ask for less")
        if whole_gpus and scene.gpus != int(scene.gpus):
            raise BadInput(f"scene {scene.name!r}: gpus is {scene.gpus:g}: shares of a GPU are given out by Ray only")
