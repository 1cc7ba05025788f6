"""What the two stores of MLflow have in common: names of pictures, states, and how infinity is stored."""

import math
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from fieldwatch.report.imports.source import SourcePicture

_PICTURE = re.compile(r"(.+)[%+]step[%+](\d+)[%+]timestamp[%+].+\.png")
"""File name that `log_image` gives to a picture with a key and a step."""
_SLASH = re.compile(r"[#~]")
"""Characters that stand for a slash in such a name."""
FINISHED = "FINISHED"


def stored_value(value: float) -> float:
    """Return a logged value: the databases store infinity as the largest float64."""
    return math.copysign(math.inf, value) if abs(value) == sys.float_info.max else value


def parameter(text: str) -> int | float | bool | str:
    """Return a parameter as the number or the truth value that it was: MLflow stores the text of its value."""
    if text in ("True", "False"):
        return text == "True"
    for kind in (int, float):
        try:
            value = kind(text)
        except ValueError:
            continue
        # Other texts that Python reads as numbers, such as 007 and 1_000, are names.
        return value if str(value) == text and math.isfinite(value) else text
    return text


def ending_note(status: str) -> tuple[str, ...]:
    """Return a remark on the state of a run; none if it has finished."""
    if status == FINISHED:
        return ()
    told = "its end is not recorded: it was killed, or is still running" if status == "RUNNING" else ""
    return (told or f"its state in MLflow is {status.lower() or 'unknown'}",)


def logged_pictures(artifacts: Path) -> Iterator[SourcePicture]:
    """Yield the pictures that `log_image` wrote with a key, in order of their steps."""
    folder = artifacts / "images"
    named = [(path, _PICTURE.fullmatch(path.name)) for path in folder.iterdir()] if folder.is_dir() else []
    found = [(int(match[2]), _SLASH.sub("/", match[1]), path) for path, match in named if match is not None]
    for step, name, path in sorted(found):
        yield SourcePicture(name=name, step=step, content=path.read_bytes())
