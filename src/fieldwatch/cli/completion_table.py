"""Commands, their flags and choices, as tab completion needs them; ``make docs`` stores them in completion.json."""

import ast
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout, suppress
from dataclasses import dataclass
from importlib import resources
from typing import Literal

import orjson

Takes = Literal["nothing", "value", "path"] | tuple[str, ...]
_SPEC = "COMPLETION_SPEC = "


@dataclass(frozen=True, kw_only=True)
class Flag:
    """A flag of a command.

    Attributes:
        name: with its dashes.
        takes: nothing, any value, a path, or one of some words.
    """

    name: str
    takes: Takes


def flags_of(run: Callable[[Sequence[str]], object]) -> tuple[Flag, ...]:
    """Ask a command's own parser for its flags.

    Args:
        run: what runs the command on a list of words.

    Raises:
        ValueError: the parser answers in another form than the one that is known.
    """
    written = io.StringIO()
    # tyro prints the script and exits; the list of flags is one line of it, in Python's own notation.
    with redirect_stdout(written), suppress(SystemExit):  # which is how a parser ends after it has answered
        run(["--tyro-print-completion", "bash"])
    line = next((one for one in written.getvalue().splitlines() if one.startswith(_SPEC)), None)
    if line is None:
        raise ValueError(
            f"tyro's completion for bash has no line {_SPEC!r}: another version of tyro than the pinned one?"
        )
    options = ast.literal_eval(line.removeprefix(_SPEC))["options"]
    return tuple(Flag(name=name, takes=_takes(option)) for option in options for name in option["flags"])


def stored_flags() -> dict[str, tuple[Flag, ...]]:
    """Flags of every command, by the words that it is called with, as they were when the table was made."""
    table = orjson.loads(resources.files("fieldwatch.cli").joinpath("completion.json").read_bytes())
    return {
        command: tuple(
            Flag(name=name, takes=tuple(takes) if isinstance(takes, list) else takes) for name, takes in flags.items()
        )
        for command, flags in table.items()
    }


def as_stored(flags: Mapping[str, Sequence[Flag]]) -> bytes:
    """The table as its file holds it."""
    table = {command: {flag.name: flag.takes for flag in command_flags} for command, command_flags in flags.items()}
    return orjson.dumps(table, option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)


def _takes(option: Mapping[str, object]) -> Takes:
    if option["type"] == "choice" and isinstance(option["choices"], list):
        return tuple(sorted(str(one) for one in option["choices"]))  # a union of literals comes in any order
    if option["type"] in {"flag", "boolean"}:
        return "nothing"
    return "path" if option["type"] == "path" and "PATH" in str(option["description"]).partition("•")[0] else "value"
