"""Command line of ``fieldwatch train normals``: translates the flags of the original script and its .conf files."""

from collections.abc import Sequence
from pathlib import Path

from fieldwatch.cli.kit import BadInput, dashed, preset_of, reading_input, spelled_out
from fieldwatch.pipeline import CommandLine
from fieldwatch.recon.commands.migrate.pmni import read_pmni
from fieldwatch.recon.commands.migrate.pmni_flags import translate_flags
from fieldwatch.recon.pipelines.normals import PRESETS

BESIDE_CONF = "pmni"
"""Preset for settings that a .conf file does not contain, unless --preset names another one."""
SHORT = 500
"""Steps below which a run is evaluated at its end only, unless --evaluate-at says otherwise: an evaluation renders all
views and meshes the surface, which takes as long as some hundred steps."""


def read(words: Sequence[str]) -> CommandLine:
    """Translate the flags of the original script, and read the .conf file that they name.

    Raises:
        BadInput: there is no such preset, the file cannot be read, or a flag of the original script has no counterpart.
    """
    words = spelled_out(translate_flags(words))
    path = _given(words, "--conf")
    object_name = _given(words, "--obj-name")
    if path is None:
        if object_name is not None:
            raise BadInput(f"--obj-name {object_name} replaces CASE_NAME in a file: give --conf FILE, too")
        steps = _given(words, "--steps")
        if steps is None or not steps.isdecimal() or int(steps) >= SHORT or _given(words, "--evaluate-at") is not None:
            return CommandLine(arguments=words)
        note = f"a run of {steps} steps is evaluated at its end only; --evaluate-at N evaluates it more often"
        return CommandLine(arguments=["--evaluate-at", "0", *words], notes=(note,))
    # In front, so that a --preset of the user would come later and win.
    if _given(words, "--preset") is None:
        words = ["--preset", BESIDE_CONF, *words]
    with reading_input():
        conf = read_pmni(Path(path), preset_of(words, PRESETS), object_name=object_name)
    # In front for the same reason.
    if conf.log_every is not None:
        words = ["--log-every", str(conf.log_every), *words]
    return CommandLine(arguments=words, config=conf.config, out=conf.out, notes=conf.notes)


def _given(words: Sequence[str], flag: str) -> str | None:
    """Return the last value of a flag; None if it is not given."""
    value = None
    for i, word in enumerate(words):
        name, equals, rest = word.partition("=")
        if dashed(name) == flag:
            value = rest if equals else (words[i + 1] if i + 1 < len(words) else None)
    return value
