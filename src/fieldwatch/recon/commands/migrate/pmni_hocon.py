"""The part of HOCON that PMNI's files are written in, read with the line of every value.

Braces, dotted keys, `=` or `:`, lists, quoted and unquoted values, comments (`#`, `//`). What else HOCON has and these
files do not (include, substitutions, `+=`, text blocks) is refused by name.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from fieldwatch import InputError

Scalar = str | int | float | bool | None
Value = Scalar | list[Scalar]


class ConfError(InputError):
    """A file of settings that cannot be read: file, line, what stands there, what was wanted."""


@dataclass(frozen=True, kw_only=True)
class ConfEntry:
    """A value and where it stands.

    Attributes:
        value: as typed by HOCON: quoted is text; unquoted is a number, a truth value, null or text.
        line: counted from 1.
    """

    value: Value
    line: int


@dataclass(frozen=True, kw_only=True)
class Conf:
    """The settings of a file.

    Attributes:
        path: of the file.
        entries: by dotted key, in the order of the file.
        replaced: per key that was given again, the line that no longer counts.
    """

    path: Path
    entries: Mapping[str, ConfEntry]
    replaced: Mapping[str, int]


# Blanks and comments, but no line ends: those separate settings.
_BLANK = re.compile(r"(?:[ \t\r]|(?:#|//)[^\n]*)+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NAME = re.compile(r"[\w-]+")
# An unquoted value: anything up to a separator or a comment; a single slash is fine.
_BARE = re.compile(r"(?:[^\n,\[\]{}\"#=:$/]+|/(?!/))+")
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
_DEEPEST = 20


def read_conf(path: Path, *, object_name: str | None = None) -> Conf:
    """Read a file; the word CASE_NAME in it stands for the object's name.

    Raises:
        ConfError: there is no such file, it is not of the part of HOCON above, or an object's name is wanted.
    """
    if not path.is_file():
        raise ConfError(f"--conf {path}: there is no such file; give one of PMNI's .conf files")
    try:
        # utf-8-sig: editors on Windows write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfError(f"{path} is no text ({error}): give one of PMNI's .conf files") from error
    if object_name is not None:
        text = text.replace("CASE_NAME", object_name)
    return _HoconReader(path, text).read()


@dataclass
class _HoconReader:
    """Walks through a text once, from left to right."""

    path: Path
    text: str
    position: int = 0
    _counted_up_to: int = 0
    _lines: int = 1
    entries: dict[str, ConfEntry] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)

    def read(self) -> Conf:
        """All of it; braces around everything are allowed."""
        self._skip()
        whole = self._takes("{")
        self._members("", 0, closed=whole)
        self._skip()
        if self.position < len(self.text):
            raise self._error(
                "stands after the brace that closes all settings: put it inside, or leave out the outer braces"
            )
        return Conf(path=self.path, entries=self.entries, replaced=self.replaced)

    def _members(self, parent: str, depth: int, *, closed: bool) -> None:
        """Settings up to the brace that closes them, or to the end of the text."""
        opened = self._line
        if depth > _DEEPEST:
            raise self._error(f"opens more than {_DEEPEST} blocks within each other")
        while True:
            self._skip(",")
            if self.position >= len(self.text):
                if closed:
                    raise ConfError(f"{self.path}:{opened}: the block that opens here is never closed: add a }}")
                return
            if closed and self._takes("}"):
                return
            self._member(parent, depth)
            self._ends_member()

    def _member(self, parent: str, depth: int) -> None:
        line = self._line
        name = self._key()
        key = f"{parent}.{name}" if parent else name
        self._skip()
        if self._takes("{"):
            self._members(key, depth + 1, closed=True)
            return
        if self.text.startswith("+=", self.position):
            raise self._error(f"adds to {key}, which is not read here: write the whole list")
        if not (self._takes("=") or self._takes(":")):
            raise self._error(f"follows {key}: wanted {key} = VALUE, or {name} {{ ... }}")
        self._skip()
        if self._takes("{"):
            self._members(key, depth + 1, closed=True)
        else:
            self._put(key, ConfEntry(value=self._value(key), line=line))

    def _put(self, key: str, entry: ConfEntry) -> None:
        """A later value replaces an earlier one, and blocks of the same name are one block (HOCON)."""
        below = f"{key}."
        parts = key.split(".")
        above = {".".join(parts[:count]) for count in range(1, len(parts) + 1)}
        for old in [old for old in self.entries if old in above or old.startswith(below)]:
            self.replaced[old] = self.entries.pop(old).line
        self.entries[key] = entry

    def _key(self) -> str:
        names = [self._name()]
        while self._takes("."):
            names.append(self._name())
        if names == ["include"] and not re.match(r"\s*[=:{]", self.text[self.position :]):
            raise self._error("belongs to an include, which is not followed: put the other file's settings here")
        return ".".join(names)

    def _name(self) -> str:
        if match := _QUOTED.match(self.text, self.position):
            self.position = match.end()
            return self._unquoted(match[0])
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self._error("is no name of a setting: wanted NAME = VALUE, or NAME { ... }")
        self.position = match.end()
        return match[0]

    def _value(self, key: str) -> Value:
        if not self._takes("["):
            return self._scalar(key)
        items: list[Scalar] = []
        opened = self._line
        while True:
            self._skip(",\n")
            if self.position >= len(self.text):
                raise ConfError(f"{self.path}:{opened}: the list of {key} is never closed: add a ]")
            if self._takes("]"):
                return items
            items.append(self._scalar(key))
            self._skip()
            if self.text[self.position : self.position + 1] not in (",", "\n", "]", ""):
                raise self._error(f"stands in the list of {key}: separate its values by commas")

    def _scalar(self, key: str) -> Scalar:
        if self.text.startswith('"""', self.position):
            raise self._error(f"opens a block of text for {key}: write it in one line, in single quotes")
        if match := _QUOTED.match(self.text, self.position):
            self.position = match.end()
            return self._unquoted(match[0])
        if self.text.startswith("$", self.position):
            raise self._error(f"is a substitution, which is not read here: write the value of {key}")
        match = _BARE.match(self.text, self.position)
        if match is None or not match[0].strip():
            raise self._error(f"is no value for {key}: wanted a number, True or False, a text, or a list of them")
        self.position = match.end()
        return _typed(match[0].strip())

    def _ends_member(self) -> None:
        """After a value comes the end of the line, a comma, or the end of the block."""
        blank = _BLANK.match(self.text, self.position)
        self.position = blank.end() if blank else self.position
        if self.text[self.position : self.position + 1] not in ("", "\n", ",", "}"):
            raise self._error("follows a value: put it on a line of its own, or the whole value in quotes")

    def _unquoted(self, text: str) -> str:
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise self._error(f"follows {text}, which has an escape that there is not ({error})") from error

    def _skip(self, also: str = "") -> None:
        """Blanks, line ends and comments, and what else separates here."""
        while self.position < len(self.text):
            match = _BLANK.match(self.text, self.position)
            if match:
                self.position = match.end()
            elif self.text[self.position] == "\n" or self.text[self.position] in also:
                self.position += 1
            else:
                return

    def _takes(self, sign: str) -> bool:
        if self.text.startswith(sign, self.position):
            self.position += 1
            return True
        return False

    @property
    def _line(self) -> int:
        self._lines += self.text.count("\n", self._counted_up_to, self.position)  # only what is new since the last look
        self._counted_up_to = self.position
        return self._lines

    def _error(self, what: str) -> ConfError:
        rest = self.text[self.position :].split("\n", 1)[0].strip()
        context = (
            repr(rest[:40])
            if rest
            else "the end of the line"
            if self.position < len(self.text)
            else "the end of the file"
        )
        return ConfError(f"{self.path}:{self._line}: {context} {what}")


def _typed(text: str) -> Scalar:
    """What an unquoted value means."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
