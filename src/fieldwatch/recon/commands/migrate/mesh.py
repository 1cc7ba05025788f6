"""Flags of the original SuGaR scripts that extract and refine meshes; importing them needs no torch."""

import re
from collections.abc import Mapping, Sequence

from fieldwatch.cli.kit import BadInput, dashed, renamed

EXTRACT_ORIGINALS: Mapping[str, str] = {
    "-l": "--surface-level",
    "-v": "--vertices",
    "--n-vertices-in-mesh": "--vertices",
    "--center-bbox": "--centered",
    "--project-mesh-on-surface-points": "--snap",
    "-b": "--bboxmin",
    "-B": "--bboxmax",
}
"""Flags of `fieldwatch mesh extract` by flag of the original script."""
REFINE_ORIGINALS: Mapping[str, str] = {
    "--refinement-time": "--preset",
    "-g": "--gaussians-per-triangle",
    "-f": "--iterations",
    "--refinement-iterations": "--iterations",
    "-n": "--normal-consistency-weight",
    "--normal-consistency-factor": "--normal-consistency-weight",
    "-o": "--out",
    "--output-dir": "--out",
}
"""Flags of `fieldwatch mesh refine` by flag of the original script."""
CORNERS = ("--bboxmin", "--bboxmax")
# Corners are written as "(x,y,z)" in the original.
_CORNER = re.compile(r"[()\[\]\s]")
_SWITCHES = ("--centered", "--snap")


def translate_extract(arguments: Sequence[str]) -> list[str]:
    """Translate the flags of the original extraction: names, switches with a value, corners written as "(x,y,z)".

    Raises:
        BadInput: a corner of the box is missing, or is not three numbers.
    """
    rest = renamed(arguments, EXTRACT_ORIGINALS)
    words: list[str] = []
    corners: dict[str, list[str]] = {}
    while rest:
        flag, equals, value = rest.pop(0).partition("=")
        name = dashed(flag)
        # The original writes switches with a value, as in --snap True.
        if name in _SWITCHES and (equals or (rest and rest[0].lower() in {"true", "false"})):
            truth = (value if equals else rest.pop(0)).lower() == "true"
            words.append(name if truth else f"--no-{name[2:]}")
        elif name in CORNERS:
            corners[name] = _corner(name, value if equals else (rest.pop(0) if rest else ""))
        else:
            words.append(flag + equals + value)
    if len(corners) == 1:
        raise BadInput(
            f"{next(iter(corners))} is given without the other corner: give --bboxmin and --bboxmax, or --bbox"
        )
    return words + (["--bbox", *corners["--bboxmin"], *corners["--bboxmax"]] if corners else [])


def translate_refine(arguments: Sequence[str]) -> list[str]:
    """Rename the flags of the original refinement."""
    return renamed(arguments, REFINE_ORIGINALS)


def _corner(flag: str, text: str) -> list[str]:
    numbers = _CORNER.sub("", text).split(",")
    if len(numbers) != 3:
        raise BadInput(f'{flag} must be three numbers, as in {flag} "(-1,-1,-1)", got {text!r}')
    return numbers
