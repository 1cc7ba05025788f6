"""Reader of the subset of HOCON that PMNI's files use; it records the line of every value.

Supported are braces, dotted keys, `=` or `:`, lists, quoted and unquoted values, and comments (`#`, `//`). Other
features of HOCON (include, substitutions, `+=`, multi-line strings) are refused with an error that names them.
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
    """A settings file cannot be read; the message gives file, line, the text found and the syntax expected."""


@dataclass(frozen=True, kw_only=True)
class ConfEntry:
    """A value and its line.

    Attributes:
        value: typed value: quoted is a string; unquoted is a number, a boolean, null or a string.
        line: line number, counted from 1.
    """

    value: Value
    line: int


@dataclass(frozen=True, kw_only=True)
class Conf:
    """The settings of a file.

    Attributes:
        path: path of the file.
        entries: values by dotted key, in the order of the file.
        replaced: line of the overridden value, by key, for keys that occur again.
    """

    path: Path
    entries: Mapping[str, ConfEntry]
    replaced: Mapping[str, int]


# Spaces and comments, but no line breaks: those separate settings.
_BLANK = re.compile(r"(?:[ \t\r]|(?:#|//)[^\n]*)+")
_QUOTED = re.compile(r'"(?:[^"\\\n]|\\.)*"')
_NAME = re.compile(r"[\w-]+")
# An unquoted value ends at a separator or a comment; a single slash, as in paths, belongs to it.
_BARE = re.compile(r"(?:[^\n,\[\]{}\"#=:$/]+|/(?!/))+")
_WHOLE = re.compile(r"[+-]?\d+")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?")
# PMNI's files write True and False: compared in lower case.
_WORDS: dict[str, bool | None] = {"true": True, "false": False, "null": None}
# Limit of nested blocks: the parser is recursive.
_DEEPEST = 20


def read_conf(path: Path, *, object_name: str | None = None) -> Conf:
    """Read a file; the placeholder CASE_NAME in it is replaced by the name of the object.

    Raises:
        ConfError: there is no such file, or it uses unsupported syntax.
    """
    if not path.is_file():
        raise ConfError(f"--conf {path}: there is no such file; give one of PMNI's .conf files")
    try:
        # utf-8-sig: editors on Windows write a byte order mark.
        text = path.read_text(encoding="utf-8-sig")
    except UnicodeDecodeError as error:
        raise ConfError(f"{path} is not a text file ({error}): give one of PMNI's .conf files") from error
    # Before parsing, as PMNI does: CASE_NAME may be a part of any value.
    if object_name is not None:
        text = text.replace("CASE_NAME", object_name)
    return _HoconReader(path, text).read()


@dataclass
class _HoconReader:
    """Recursive-descent parser: one pass over the text, from left to right."""

    path: Path
    text: str
    position: int = 0
    _counted_up_to: int = 0
    _lines: int = 1
    entries: dict[str, ConfEntry] = field(default_factory=dict)
    replaced: dict[str, int] = field(default_factory=dict)

    def read(self) -> Conf:
        """Read the whole text; braces around all settings are optional."""
        self._skip()
        whole = self._takes("{")
        self._members("", 0, closed=whole)
        self._skip()
        if self.position < len(self.text):
            raise self._error("after the closing brace of all settings: move it inside, or remove the outer braces")
        return Conf(path=self.path, entries=self.entries, replaced=self.replaced)

    def _members(self, parent: str, depth: int, *, closed: bool) -> None:
        """Read settings up to the closing brace, or to the end of the text."""
        opened = self._line
        if depth > _DEEPEST:
            raise self._error(f"expected at most {_DEEPEST} nested blocks, got {depth}")
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
        # HOCON allows a block without a separator: name { ... }.
        if self._takes("{"):
            self._members(key, depth + 1, closed=True)
            return
        if self.text.startswith("+=", self.position):
            raise self._error(f"appends to {key}, which is not supported: write the whole list")
        if not (self._takes("=") or self._takes(":")):
            raise self._error(f"after {key}: expected {key} = VALUE, or {name} {{ ... }}")
        self._skip()
        if self._takes("{"):
            self._members(key, depth + 1, closed=True)
        else:
            self._put(key, ConfEntry(value=self._value(key), line=line))

    def _put(self, key: str, entry: ConfEntry) -> None:
        """Store a value; as in HOCON, later values override earlier ones, and blocks of the same name are merged."""
        # A plain value also overrides a block of the same key, and a block a plain value.
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
        # "include" is a keyword only if it is not itself assigned.
        if names == ["include"] and not re.match(r"\s*[=:{]", self.text[self.position :]):
            raise self._error("belongs to an include, which is not supported: copy the other file's settings here")
        return ".".join(names)

    def _name(self) -> str:
        if match := _QUOTED.match(self.text, self.position):
            self.position = match.end()
            return self._unquoted(match[0])
        match = _NAME.match(self.text, self.position)
        if match is None:
            raise self._error("is not the name of a setting: expected NAME = VALUE, or NAME { ... }")
        self.position = match.end()
        return match[0]

    def _value(self, key: str) -> Value:
        if not self._takes("["):
            return self._scalar(key)
        items: list[Scalar] = []
        opened = self._line
        while True:
            # Line breaks separate items, too.
            self._skip(",\n")
            if self.position >= len(self.text):
                raise ConfError(f"{self.path}:{opened}: the list of {key} is never closed: add a ]")
            if self._takes("]"):
                return items
            items.append(self._scalar(key))
            self._skip()
            if self.text[self.position : self.position + 1] not in (",", "\n", "]", ""):
                raise self._error(f"in the list of {key}: separate the values by commas")

    def _scalar(self, key: str) -> Scalar:
        if self.text.startswith('"""', self.position):
            raise self._error(f"opens a multi-line string for {key}, which is not supported: write it on one line")
        if match := _QUOTED.match(self.text, self.position):
            self.position = match.end()
            return self._unquoted(match[0])
        if self.text.startswith("$", self.position):
            raise self._error(f"is a substitution, which is not supported: write the value of {key}")
        match = _BARE.match(self.text, self.position)
        if match is None or not match[0].strip():
            raise self._error(
                f"is not a value for {key}: expected a number, True or False, a string, or a list of them"
            )
        self.position = match.end()
        return _typed(match[0].strip())

    def _ends_member(self) -> None:
        """Check that a value is followed by a line break, a comma, or the end of the block."""
        blank = _BLANK.match(self.text, self.position)
        self.position = blank.end() if blank else self.position
        if self.text[self.position : self.position + 1] not in ("", "\n", ",", "}"):
            raise self._error("after a value: put it on a new line, or quote the whole value")

    def _unquoted(self, text: str) -> str:
        # HOCON has the string syntax of JSON.
        try:
            return json.loads(text)
        except json.JSONDecodeError as error:
            raise self._error(f"after {text}, which has an invalid escape ({error})") from error

    def _skip(self, also: str = "") -> None:
        """Skip spaces, line breaks and comments, and the given separators."""
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
        # Incremental: counting from the start for every value would be quadratic.
        self._lines += self.text.count("\n", self._counted_up_to, self.position)
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
    """Return the typed value of an unquoted text."""
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    if _WHOLE.fullmatch(text):
        return int(text)
    return float(text) if _NUMBER.fullmatch(text) else text
