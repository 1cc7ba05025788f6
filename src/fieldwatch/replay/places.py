"""Places in the code of the user: the Python stack without the frames of torch and of this toolkit."""

import contextlib
import linecache
import runpy
import sys
from dataclasses import dataclass
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import CodeType

import torch

RawStack = tuple[tuple[CodeType, int], ...]
"""Code objects with line numbers, the innermost first; cheap to take, see :func:`frames_of`."""
DEEPEST = 60
"""Maximum number of frames of a stack."""

_TOOLKIT = f"{Path(__file__).parents[1]}/"
_PIPELINES = f"{_TOOLKIT}recon/"
_CALLER = f"{_TOOLKIT}replay/replay.py"


def _hidden_folders() -> tuple[str, ...]:
    folders = ["<frozen", f"{Path(torch.__file__).parent}/"]
    # Decorators that only check shapes, and the code that they generate.
    folders.append("<@beartype(")
    for name in ("jaxtyping", "beartype"):
        spec = find_spec(name)
        folders += [f"{place}/" for place in (spec.submodule_search_locations or ())] if spec else []
    return tuple(folders)


_HIDDEN_FOLDERS = _hidden_folders()
_HIDDEN_FILES = (contextlib.__file__, runpy.__file__)


@dataclass(frozen=True)
class CodeLine:
    """One line of a stack.

    Attributes:
        file: path of the source file.
        line: 1-based line number.
        function: qualified name of the function.
        text: the line of code; empty if the file cannot be read.
    """

    file: str
    line: int
    function: str
    text: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line}"


@cache
def is_hidden(code: CodeType) -> bool:
    """Return whether code belongs to torch, to this toolkit, or to Python's machinery."""
    file = code.co_filename
    if file.startswith(_HIDDEN_FOLDERS) or file in _HIDDEN_FILES:
        return True
    return file.startswith(_TOOLKIT) and not file.startswith(_PIPELINES)


def take_stack() -> RawStack:
    """Return the stack of the caller, the innermost frame first."""
    frame = sys._getframe(1)  # noqa: SLF001  traceback.extract_stack reads every file
    stack: list[tuple[CodeType, int]] = []
    # The loop is called by the replay: what is below is not the user's.
    while frame is not None and len(stack) < DEEPEST and frame.f_code.co_filename != _CALLER:
        if not is_hidden(frame.f_code):
            stack.append((frame.f_code, frame.f_lineno))
        frame = frame.f_back
    return tuple(stack)


def frames_of(stack: RawStack) -> list[CodeLine]:
    """Return the frames of a stack with their source text, the innermost first."""
    return [
        CodeLine(code.co_filename, line, code.co_qualname, linecache.getline(code.co_filename, line).strip())
        for code, line in stack
    ]
