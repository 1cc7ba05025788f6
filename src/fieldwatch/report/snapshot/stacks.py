"""Stacks of calls, each kept once, and the sites they stand for."""

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
        filename: the source file, as the snapshot gives it.
        line: 1-based line; 0 where unknown.
        name: the function.
    """

    filename: str
    line: int
    name: str

    def __str__(self) -> str:
        """Return ``file.py:12 function``, the file without its folders."""
        file = self.filename.rsplit("/", 1)[-1].rsplit("\\", 1)[-1]
        return f"{file}:{self.line} {self.name}"

    @property
    def is_generic(self) -> bool:
        """Tell whether the call says nothing about who wanted the memory.

        Generic are compiled code, Python's own library, and packages that only pass calls on (torch, numpy, einops,
        trainers).
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
    """Return the calls that tell who wanted the memory, innermost first, at most 6; generic calls are left out.

    A stack of nothing but generic calls keeps its innermost ones.
    """
    telling = tuple(frame for frame in stack if not frame.is_generic)
    return (telling or stack)[:_SHORT]


class StackTable:
    """Gives every different stack of a snapshot a number; number 0 is the empty stack.

    A pickle names a stack or a frame once and refers to it afterwards, so what was seen is known by its identity.

    Args:
        budget: the largest number of frames looked at. A file cannot hold more of them than it has bytes, except by
            referring to the same list again and again.
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
        """Count entries that were looked at.

        Raises:
            SnapshotError: more than the file can hold.
        """
        self._left -= count
        if self._left < 0:
            raise SnapshotError(f"{spell(place)}: more entries than the file has bytes: it repeats itself without end")

    def number(self, value: object, place: KeyPath) -> int:
        """Return the number of a list of frames; the list must live as long as the table is used.

        Raises:
            SnapshotError: it is no list of frames.
        """
        # By identity: the unpickler gives one object for each memoized list, so most lookups cost nothing.
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
        except (KeyError, TypeError):  # not seen yet, or not of this form: look closely
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
