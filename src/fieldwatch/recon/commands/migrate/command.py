"""``fieldwatch migrate``: translate an original command line or settings file into a fieldwatch command."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields, is_dataclass
from pathlib import Path
from typing import Any

from fieldwatch.cli.kit import BadInput, Terminal, dashed, flag_names, main, print_json, read_flags, reading_input
from fieldwatch.recon.commands.migrate.flags import MigrateFlags
from fieldwatch.recon.commands.migrate.gaussian_splatting import read_settings
from fieldwatch.recon.commands.migrate.mesh import CORNERS, EXTRACT_ORIGINALS
from fieldwatch.recon.commands.migrate.normals import BESIDE_CONF
from fieldwatch.recon.commands.migrate.pmni import read_pmni
from fieldwatch.recon.commands.migrate.scripts import PMNI, SCRIPT_NAMES, VANILLA, Script, script_of
from fieldwatch.recon.pipelines.normals import PRESETS

# Negative numbers begin like flags.
_NUMBER = re.compile(r"-\d|-\.\d")
_CONF_FLAGS = ("--conf", "--obj-name")


@dataclass(frozen=True, kw_only=True)
class Migrated:
    """A translated command line.

    Attributes:
        command: words after ``fieldwatch``.
        missing: placeholders in the command that the user has to fill in.
        notes: pairs of a flag or key, and the reason why it has no counterpart or what differs.
    """

    command: tuple[str, ...]
    missing: tuple[str, ...]
    notes: tuple[tuple[str, str], ...]


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    # The original line is passed after --, so that its flags are not taken for flags of migrate.
    own, line = split_line(arguments)
    chosen = read_flags(MigrateFlags, prog="fieldwatch migrate", arguments=[*own, "--", *line] if line else own)
    migrated = migrate(chosen.line)
    if chosen.json:
        notes = [{"about": about, "reason": reason} for about, reason in migrated.notes]
        print_json({"command": ["fieldwatch", *migrated.command], "missing": migrated.missing, "notes": notes})
    else:
        console = Terminal(highlight=False, soft_wrap=True, stderr=chosen.run)
        console.print(shlex.join(["fieldwatch", *migrated.command]), markup=False)
        for about, reason in migrated.notes:
            console.print(f"  {about}: {reason}" if about else f"  {reason}", markup=False)
    if not chosen.run:
        return 0
    if migrated.missing:
        raise BadInput(f"cannot run the command: fill in {' and '.join(migrated.missing)}, and run it yourself")
    return main(list(migrated.command))


def split_line(arguments: Sequence[str]) -> tuple[list[str], list[str]]:
    """Split the words into migrate's own flags, which come first, and the original line."""
    words = list(arguments)
    at = next((i for i, word in enumerate(words) if not word.startswith("-")), len(words))
    return [word for word in words[:at] if word != "--"], words[at:]


def migrate(line: Sequence[str]) -> Migrated:
    """Translate an original command line, or a settings file.

    Raises:
        BadInput: the script is unknown, or the file cannot be read.
    """
    # Words before the script (python, torchrun, environment variables) are ignored.
    at = next((i for i, word in enumerate(line) if word.endswith(".py")), None)
    if at is not None:
        script = script_of(line[at], line[at + 1 :])
        if script is None:
            raise BadInput(f"{line[at]} is not known: expected one of {', '.join(SCRIPT_NAMES)}, a .conf or cfg_args")
        return _migrate_script(script, line[at + 1 :])
    path = Path(line[0])
    if path.suffix == ".conf":
        return _migrate_script(PMNI, ["--conf", *line])
    if path.name == "cfg_args" or (path / "cfg_args").exists():
        return _migrate_script(VANILLA, [*read_settings(path), *line[1:]])
    raise BadInput(
        f"{line[0]} is not an original script, .conf file or cfg_args: give the whole line, as in "
        "fieldwatch migrate python train.py -s SCENE"
    )


def _migrate_script(script: Script, line: Sequence[str]) -> Migrated:
    """Translate flag by flag; one that cannot be translated becomes a note."""
    places = {place: place for place in script.places}
    known = flag_names(script.command)
    words: list[str] = []
    notes: list[tuple[str, str]] = []
    conf: dict[str, str] = {}
    for group in _groups(line):
        name = dashed(group[0].partition("=")[0])
        values = [group[0].partition("=")[2]] if "=" in group[0] else group[1:]
        if name in script.fills and values:
            places[script.fills[name]] = values[0]
        # An explained omission; unknown flags are noted by `_translate`.
        elif name in script.dropped:
            notes.append((group[0], script.dropped[name]))
        elif script.command == "train normals" and name in _CONF_FLAGS and values:
            conf[name] = values[0]
        else:
            _translate(script, group, known, words, notes)
    if script is VANILLA and "--held-out" not in words:
        # 3DGS holds photos out with --eval only; our default holds some out always.
        words += ["--held-out", "0"]
    needed = {flag: place for flag, place in script.needed.items() if flag not in words}
    words = [*_from_conf(conf, words, notes), *_start(script, words), *words]
    for flag, place in needed.items():
        words += [flag, place]
    missing = (*(place for place in script.places if places[place] == place), *needed.values())
    return Migrated(command=(*script.command.split(), *places.values(), *words), missing=missing, notes=tuple(notes))


def _translate(
    script: Script, group: Sequence[str], known: set[str], words: list[str], notes: list[tuple[str, str]]
) -> None:
    """Translate one flag with its values into ``words``, or explain in ``notes`` why it is left out."""
    try:
        translated = script.translate(group)
    except BadInput as error:
        notes.append((group[0], str(error)))
        return
    notes += [(group[0], remark) for remark in script.remarks(group)]
    flag = dashed(translated[0].partition("=")[0]) if translated else ""
    if flag.startswith("-") and flag not in known:
        notes.append((group[0], f"`fieldwatch {script.command}` has no such flag"))
    elif translated:
        words += [dashed(word) if word.startswith("--") and "=" not in word else word for word in translated]


def _start(script: Script, words: Sequence[str]) -> list[str]:
    """Return the script's default flags, except those that the line sets."""
    pairs = zip(script.start[::2], script.start[1::2], strict=True)
    return [word for flag, value in pairs if flag not in words for word in (flag, value)]


def _from_conf(conf: dict[str, str], words: Sequence[str], notes: list[tuple[str, str]]) -> list[str]:
    """Return flags equivalent to PMNI's .conf file, except those that the line sets."""
    if "--conf" not in conf:
        return []
    with reading_input():
        base = PRESETS[BESIDE_CONF]()
        read = read_pmni(Path(conf["--conf"]), base, object_name=conf.get("--obj-name"))
    notes += [("", note) for note in read.notes]
    out = [] if read.out is None or "--out" in words else ["--out", str(read.out)]
    log = [] if read.log_every is None or "--log-every" in words else ["--log-every", str(read.log_every)]
    changed = [word for group in _changed(read.config, base) if group[0] not in words for word in group]
    return ["--preset", BESIDE_CONF, *out, *log, *changed]


def _changed(config: Any, base: Any) -> Iterator[list[str]]:
    """Yield the flags that turn one configuration into another."""
    for each in fields(base):
        value = getattr(config, each.name)
        usual = getattr(base, each.name)
        flag = f"--{each.name.replace('_', '-')}"
        if is_dataclass(usual):
            yield from _changed(value, usual)
        elif value != usual and isinstance(value, bool):
            yield [flag if value else f"--no-{flag[2:]}"]
        elif value != usual:
            yield [flag, *map(str, value if isinstance(value, tuple) else (value,))]


def _groups(line: Sequence[str]) -> list[list[str]]:
    """Split a line into flags with their values; the two corners of a box belong together."""
    groups: list[list[str]] = []
    corners: list[str] = []
    for word in line:
        if word.startswith("-") and not _NUMBER.match(word):
            groups.append([word])
        elif groups:
            groups[-1].append(word)
        # A value before any flag: the scripts take none, so it is noted as unknown.
        else:
            groups.append([word])
    # The two corners become one --bbox and must be translated together.
    for group in list(groups):
        flag = group[0].partition("=")[0]
        if EXTRACT_ORIGINALS.get(flag, dashed(flag)) in CORNERS:
            groups.remove(group)
            corners += group
    return [*groups, corners] if corners else groups
