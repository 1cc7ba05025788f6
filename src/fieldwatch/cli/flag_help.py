"""Command lines as dataclasses: flags are read by tyro; ``--help`` lists the main ones, ``--help-all`` all of them."""

import ast
import inspect
import re
import shutil
import sys
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass, make_dataclass
from functools import cache
from itertools import pairwise
from traceback import walk_tb
from typing import Annotated, Any, Final, get_args, get_type_hints

import tyro

from fieldwatch.base import InputError

HELP: Final = ("-h", "--help")
HELP_ALL: Final = "--help-all"
_EXAMPLE: Final = "Example: "
FlagGroups = Mapping[str, Sequence[str]]
"""Names of fields by the title under which ``--help`` lists them."""

_ATTRIBUTES = re.compile(r"^Attributes:\n(.*?)(?=^\S|\Z)", re.MULTILINE | re.DOTALL)
_ATTRIBUTE = re.compile(r"^    (\w+): (.*?)(?=^    \w|\Z)", re.MULTILINE | re.DOTALL)


def read_flags(kind: type, *, prog: str, arguments: Sequence[str]) -> Any:
    """Read a command line; with ``--help`` or ``--help-all`` among its words, print the help and exit.

    Args:
        kind: a dataclass; its fields, and those of dataclasses in its fields, are the flags. A class variable
            ``main_flags`` (`FlagGroups`) names those that ``--help`` lists; without it, ``--help`` lists all of them.
        prog: words with which the command is called.
        arguments: the words after them.

    Returns:
        An instance of ``kind``.

    Raises:
        SystemExit: the help was printed (0), or the command line is wrong (2) and a message was printed.
        ValueError: the constructor of a dataclass raised it, and not an InputError: a bug.
    """
    if wants_help(arguments):
        print_help(kind, prog=prog, everything=HELP_ALL in arguments)
        raise SystemExit(0)
    # All texts are in docstrings: tyro need not tokenize sources in search of more.
    config = (tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff)
    try:
        return tyro.cli(kind, prog=prog, args=arguments, config=config)
    except SystemExit as ending:
        bug = _bug_behind(ending)
        if bug is None:
            raise
    # Outside the except block, so that it keeps its own context.
    raise bug


def _bug_behind(ending: SystemExit) -> ValueError | None:
    """Return the error of a constructor that the parser took for bad input; None if the input is bad.

    The parser reports every ValueError as bad input. Of those that a constructor raises, only an InputError is: any
    other one is a bug.
    """
    link: BaseException | None = ending
    while link is not None:
        if isinstance(link, ValueError) and _raised_by_constructor(link):
            return None if isinstance(link, InputError) else link
        link = link.__cause__ or link.__context__
    return None


def _raised_by_constructor(error: ValueError) -> bool:
    """Return whether an error was raised in a method of a dataclass, rather than while a word was converted."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    # The parser has dataclasses of its own.
    others = [frame for frame in frames if str(frame.f_globals.get("__name__", "")).partition(".")[0] != "tyro"]
    return any(is_dataclass(frame.f_locals.get("self")) for frame in others)


def wants_help(arguments: Sequence[str]) -> bool:
    """Return whether a command line asks for help; words after ``--`` belong to another program."""
    words = list(arguments)
    return any(word in (*HELP, HELP_ALL) for word in words[: words.index("--") if "--" in words else None])


def print_help(kind: type, *, prog: str, everything: bool) -> None:
    """Print the help of a command.

    Args:
        kind: the class of its flags, as for `read_flags`.
        prog: words with which the command is called.
        everything: list every flag, instead of the main ones.
    """
    flags = list(flag_fields(kind))
    groups: FlagGroups = getattr(kind, "main_flags", {})
    titles = {name: title for title, names in groups.items() for name in names}
    main = [flag for flag in flags if flag.name in titles or flag.default is MISSING] if titles else flags
    listed = flags if everything else main
    # The short help leaves out that an optional flag may be None.
    brief = () if everything else (tyro.conf.DisallowNone,)
    sys.stdout.write(f"{_description(kind)}\n\n")
    about_all = f"list all {len(flags)} flags and exit" if titles else ""
    # tyro exits after it has printed the help; the line about the other flags comes after it.
    with suppress(SystemExit):
        tyro.cli(
            _help_class(listed, titles, brief=not everything, about_all=about_all),
            prog=prog,
            description="",
            args=["--help"],
            # All texts are given: tyro need not tokenize sources in search of more.
            config=(tyro.conf.OmitArgPrefixes, tyro.conf.HelptextFromCommentsOff, *brief),
        )
    if len(listed) < len(flags):
        sys.stdout.write(f"{len(flags) - len(listed)} more flags: {prog} {HELP_ALL}\n")


@dataclass(frozen=True, kw_only=True)
class FlagField:
    """A field that holds no dataclass: one flag, or one positional argument.

    Attributes:
        name: name of the field.
        kind: its type, with tyro's markers.
        default: its value if the flag is not given; ``MISSING`` if it must be given.
        home: name of the field that holds the dataclass it is a field of; empty for the outermost one.
        text: its help.
    """

    name: str
    kind: Any
    default: Any
    home: str
    text: str

    @property
    def positional(self) -> bool:
        """Whether it is a word without a flag."""
        return any(marker in get_args(tyro.conf.Positional[int]) for marker in self._markers)

    @property
    def switch(self) -> bool:
        """Whether the flag takes no value."""
        return isinstance(self.default, bool)

    @property
    def spellings(self) -> tuple[str, ...]:
        """Every spelling of the flag, with its dashes: name, aliases, and ``--no-`` of a switch."""
        settings = [each for each in self._markers if hasattr(each, "aliases")]
        name = next((each.name for each in settings if each.name), self.name.replace("_", "-"))
        aliases = [alias for each in settings for alias in each.aliases or ()]
        dashed = [alias if alias.startswith("-") else f"--{alias}" for alias in aliases]
        return (*dashed, f"--{name}", *((f"--no-{name}",) if self.switch else ()))

    @property
    def _markers(self) -> tuple[Any, ...]:
        return getattr(self.kind, "__metadata__", ())


def flag_fields(kind: type, values: Any = MISSING, home: str = "") -> Iterator[FlagField]:
    """Yield the flags of a dataclass, including those of nested dataclasses.

    Args:
        kind: the dataclass.
        values: an instance with the defaults; ``MISSING`` takes those of the class.
        home: name of the field that holds it.
    """
    hints = get_type_hints(kind, include_extras=True)
    docs = _field_docs(kind)
    for each in fields(kind):
        default = _default_of(each) if values is MISSING else getattr(values, each.name)
        # A field that is declared as Any may hold a dataclass, too: the settings of a pipeline.
        inner: type = hints[each.name] if is_dataclass(hints[each.name]) else type(default)
        if is_dataclass(inner):
            yield from flag_fields(inner, default, each.name)
        else:
            text = docs.get(each.name, "")
            yield FlagField(name=each.name, kind=hints[each.name], default=default, home=home, text=text)


def _default_of(each: Field[Any]) -> Any:
    return each.default if each.default_factory is MISSING else each.default_factory()


def _help_class(flags: Sequence[FlagField], titles: Mapping[str, str], *, brief: bool, about_all: str) -> type:
    """Return a dataclass with the same flags, in a field for each title: tyro draws a box around each.

    Args:
        flags: what to list.
        titles: titles by name of the flag, in the order of the help; other flags are listed by their homes.
        brief: leave out defaults that say nothing: None, False, no text.
        about_all: text of ``--help-all``; empty if it would list nothing more.
    """
    order = {name: i for i, name in enumerate(titles)}
    boxes: dict[str, list[FlagField]] = {title: [] for title in titles.values()}
    for flag in sorted(flags, key=lambda flag: order.get(flag.name, len(order))):
        boxes.setdefault(titles.get(flag.name, flag.home), []).append(flag)
    members = [_help_field(flag, brief=brief) for flag in boxes.pop("", [])]
    if about_all:
        about = tyro.conf.arg(help=about_all, help_behavior_hint="")
        members.insert(0, ("help_all", Annotated[bool, tyro.conf.FlagCreatePairsOff, about], field(default=False)))
    for title, content in boxes.items():
        if content:
            box = make_dataclass("Box", [_help_field(flag, brief=brief) for flag in content], kw_only=True)
            # With OmitArgPrefixes, the name of the field is the title of the box and part of no flag.
            kind = Annotated[box, tyro.conf.arg(name=title.replace("_", " "))]
            members.append((f"box_{len(members)}", kind, field(default_factory=box)))
    return make_dataclass("Flags", members, kw_only=True)


def _help_field(flag: FlagField, *, brief: bool) -> tuple[str, Any, Any]:
    kind = Annotated[flag.kind, tyro.conf.arg(help=flag.text)] if flag.text else flag.kind
    if brief and (flag.default is None or flag.default is False or flag.default == ""):
        kind = Annotated[kind, tyro.conf.arg(help_behavior_hint="")]
    if brief and flag.default is False:
        # Named once, without --no-...; a switch that is on needs both names, because its text says what it does.
        kind = Annotated[kind, tyro.conf.FlagCreatePairsOff]
    if flag.default is MISSING:
        return flag.name, kind, field()
    return flag.name, kind, field(default_factory=lambda: flag.default)


def _description(kind: type) -> str:
    """Return the text of a command's class, its paragraphs wrapped to the terminal."""
    width = min(shutil.get_terminal_size().columns, 120)
    paragraphs = inspect.cleandoc(kind.__doc__ or "").split("\n\n")
    wrapped = [textwrap.fill(" ".join(part.split()), width) for part in paragraphs]
    # Examples follow each other without an empty line.
    gaps = ["\n" if all(text.startswith(_EXAMPLE) for text in pair) else "\n\n" for pair in pairwise(wrapped)]
    return "".join(text + gap for text, gap in zip(wrapped, [*gaps, ""], strict=True))


@cache
def _field_docs(kind: type) -> dict[str, str]:
    """Return the texts of a dataclass's fields: lines of ``Attributes:``, or the string below a field."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__):
        if section := _ATTRIBUTES.search(inspect.cleandoc(base.__doc__ or "")):
            docs |= {name: " ".join(text.split()) for name, text in _ATTRIBUTE.findall(section[1])}
        # Classes that are made at run time have no source, and no text of their own.
        with suppress(OSError, TypeError):
            docs |= _strings_below(inspect.getsource(base))
    return docs


def _strings_below(source: str) -> dict[str, str]:
    (definition,) = ast.parse(textwrap.dedent(source)).body
    body = definition.body if isinstance(definition, ast.ClassDef) else []
    docs: dict[str, str] = {}
    for statement, below in pairwise(body):
        match statement, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                docs[name] = " ".join(text.split())
            case _:
                pass
    return docs
