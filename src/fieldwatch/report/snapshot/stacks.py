"""Distinct call stacks, and the line of code that each of them is attributed to."""

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from fieldwatch.report.snapshot.error import SnapshotError
from fieldwatch.report.snapshot.fields import KeyPath, RawDict, listed, mapping, number, spell, text

BEFORE = "(before the history began)"
NO_STACK = "(no stack recorded)"
_GENERIC_PACKAGES = frozenset(
    [
        "torch",
        "torchvision",
        "torchaudio",
        "torchgen",
        "functorch",
        "triton",
        "numpy",
        "einops",
        "jaxtyping",
        "beartype",
        "accelerate",
        "lightning",
        "lightning_fabric",
        "pytorch_lightning",
        "deepspeed",
        "apex",
        "tqdm",
    ]
)
_COMPILED = (".cpp", ".cc", ".c", ".cu", ".cuh", ".h", ".hpp", ".so", ".pyx")
_INSTALLED = ("/site-packages/", "/dist-packages/")
_SHORT = 6


@dataclass(frozen=True, kw_only=True, slots=True)
class Frame:
    """One call of a stack.

    Attributes:
        filename: source file as in the snapshot.
        line: 1-based line; 0 if unknown.
        name: function.
    """

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        """Return ``file.py:12 function``, without the folder of the file."""
        file = self.filename.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
        return f"{file}:{self.line} {self.name}"

    @property
    def is_generic(self) -> bool:
        """Whether the call does not tell which part of the program requested the memory.

        This is the case for compiled code, Python's standard library, and packages such as torch, numpy, einops and
        trainers.
        """
        return _is_generic(self.filename)


@lru_cache(maxsize=1 << 16)
def _is_generic(filename: str) -> bool:
    path = filename.replace("\\", "/")
    if not path or path[0] == "<" or path.startswith("??") or path.endswith(_COMPILED):
        return True
    for folder in _INSTALLED:
        if folder in path:
            return path.rsplit(folder, 1)[1].split("/", 1)[0].removesuffix(".py") in _GENERIC_PACKAGES
    return "/lib/python3" in path or path.startswith(("torch/", "aten/", "c10/"))


Stack = tuple[Frame, ...]


def site_frames(stack: Stack) -> Stack:
    """Return at most six calls that tell what requested the memory, innermost first; generic calls are left out.

    Of a stack with generic calls only, the innermost ones are returned.
    """
    telling = tuple(frame for frame in stack if not frame.is_generic)
    return (telling or stack)[:_SHORT]


class StackTable:
    """Numbers the distinct stacks of a snapshot; 0 is the empty stack.

    A pickle contains each stack and each frame once, and then refers to it, so objects are recognized by identity.

    Args:
        budget: maximum number of entries that are read. A file has fewer entries than bytes unless it refers to the
            same list again and again.
    """

    def __init__(self, budget: int) -> None:
        self.stacks: list[Stack] = [()]
        self._left = budget
        self._numbers: dict[tuple[int, ...], int] = {(): 0}
        self._lists: dict[int, int] = {}
        self._frames: list[Frame] = []
        self._frame_numbers: dict[Frame, int] = {}
        self._dicts: dict[int, int] = {}
        self._seen: dict[tuple[Any, Any, Any], int] = {}

    def spend(self, count: int, place: KeyPath) -> None:
        """Count entries that were read.

        Raises:
            SnapshotError: if there are more than the file can contain.
        """
        self._left -= count
        if self._left < 0:
            raise SnapshotError(
                f"{spell(place)} has more entries than the file has bytes: it refers to itself again and again"
            )

    def number(self, value: object, place: KeyPath) -> int:
        """Return the number of a list of frames; the list must exist as long as the table is used.

        Raises:
            SnapshotError: if it is not a list of frames.
        """
        # By identity: the unpickler returns the same object for each reference, so most lookups cost nothing.
        known = self._lists.get(id(value))
        if known is not None:
            return known
        frames = listed(value, place)
        self.spend(len(frames), place)
        try:
            key = tuple([self._dicts[id(frame)] for frame in frames])
        except KeyError:
            key = tuple([self._frame(frame, (*place, at)) for at, frame in enumerate(frames)])
        found = self._numbers.get(key)
        if found is None:
            found = self._numbers[key] = len(self.stacks)
            self.stacks.append(tuple([self._frames[at] for at in key]))
        self._lists[id(value)] = found
        return found

    def _frame(self, value: Any, place: KeyPath) -> int:
        known = self._dicts.get(id(value))
        if known is not None:
            return known
        try:
            raw = value["filename"], value["line"], value["name"]
            found = self._dicts[id(value)] = self._seen[raw]
        except (KeyError, TypeError):  # new, or of another form: validate it
            found = self._checked(mapping(value, place), place)
        return found

    def _checked(self, given: RawDict, place: KeyPath) -> int:
        line = number(given, "line", place, default=0) if given.get("line", 0) != -1 else 0
        frame = Frame(filename=text(given, "filename", place, ""), line=line, name=text(given, "name", place, ""))
        found = self._frame_numbers.setdefault(frame, len(self._frames))
        if found == len(self._frames):
            self._frames.append(frame)
        self._dicts[id(given)] = found
        if given.keys() >= {"filename", "line", "name"}:
            self._seen[given["filename"], given["line"], given["name"]] = found
        return found
