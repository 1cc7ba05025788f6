"""The command line of PMNI's exp_runner.py, in our words; what means nothing here is refused with what does."""

from collections.abc import Sequence

from fieldwatch.cli.kit import BadInput, dashed

_INSTEAD = {
    "--case": "--obj-name NAME",
    "--object": "--obj-name NAME",
    "--config": "--conf FILE",
    "--debug": "--steps 100 for a short run; what a run does is in its log.txt",
}
"""Flags that people try on PMNI's script and that it never had."""


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Translate the original script's words; everything else stays as it came.

    Raises:
        BadInput: a flag that means nothing here; the message says what does.
    """
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = dashed(flag)
        if name in _INSTEAD:
            raise BadInput(f"{flag} is no flag of PMNI's script: use {_INSTEAD[name]}")
        if name == "--is-continue":
            words += ["--resume", "must"]
        elif name in _VALUED:
            flag_value = value if equals else (rest.pop(0) if rest else "")
            words += _VALUED[name](flag, flag_value)
        else:
            words.append(word)
    return words


def _mode(flag: str, value: str) -> list[str]:
    """The original ignores it and always trains."""
    if value == "train":
        return []
    raise BadInput(
        f"{flag} {value}: this command trains, as the original does whatever its --mode says; leave the flag out. "
        "Normals of a trained run are measured by `fieldwatch eval RUN`, meshes by `fieldwatch mesh evaluate MESH`"
    )


def _threshold(flag: str, value: str) -> list[str]:
    """The original ignores it."""
    if _number(value) == 0:
        return []
    raise BadInput(f"{flag} {value}: the surface is where the distance is 0, and that is what is meshed; leave it out")


def _gpu(flag: str, value: str) -> list[str]:
    """The original's number of the GPU; here the environment chooses among several."""
    if value == "0":
        return ["--device", "cuda"]
    number = value if value.isdecimal() else "N"
    raise BadInput(
        f"{flag} {value}: the environment chooses among several GPUs, for every program alike: "
        f"CUDA_VISIBLE_DEVICES={number} fieldwatch train normals --device cuda ..."
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_VALUED = {"--mode": _mode, "--mcube-threshold": _threshold, "--gpu": _gpu}
"""Flags of the original that take a value."""
