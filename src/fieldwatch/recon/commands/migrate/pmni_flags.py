"""Translation of the flags of PMNI's exp_runner.py; flags without a counterpart are refused with an alternative."""

from collections.abc import Sequence

from fieldwatch.cli.kit import BadInput, dashed

_INSTEAD = {
    "--case": "--obj-name NAME",
    "--object": "--obj-name NAME",
    "--config": "--conf FILE",
    "--debug": "--steps 100 for a short run; its log is in log.txt",
}
"""Flags that users try although PMNI's script never had them, and their alternatives."""


def translate_flags(arguments: Sequence[str]) -> list[str]:
    """Translate the flags of the original script; other words stay unchanged.

    Raises:
        BadInput: a flag has no counterpart; the message says what to use instead.
    """
    words: list[str] = []
    rest = list(arguments)
    while rest:
        word = rest.pop(0)
        flag, equals, value = word.partition("=")
        name = dashed(flag)
        if name in _INSTEAD:
            raise BadInput(f"{flag} is not a flag of PMNI's script: use {_INSTEAD[name]}")
        if name == "--is-continue":
            words += ["--resume", "must"]
        elif name in _VALUED:
            flag_value = value if equals else (rest.pop(0) if rest else "")
            words += _VALUED[name](flag, flag_value)
        else:
            words.append(word)
    return words


def _mode(flag: str, value: str) -> list[str]:
    """Accept ``train``; the original ignores the flag and always trains."""
    if value == "train":
        return []
    raise BadInput(
        f"{flag} {value}: this command trains, as the original does in every mode; leave the flag out. "
        "`fieldwatch eval RUN` measures normals of a trained run, `fieldwatch mesh evaluate MESH` meshes"
    )


def _threshold(flag: str, value: str) -> list[str]:
    """Accept 0; the original ignores the flag."""
    if _number(value) == 0:
        return []
    raise BadInput(f"{flag} {value}: meshes are extracted at distance 0; leave the flag out")


def _gpu(flag: str, value: str) -> list[str]:
    """Translate the number of the GPU; CUDA_VISIBLE_DEVICES selects among several."""
    if value == "0":
        return ["--device", "cuda"]
    number = value if value.isdecimal() else "N"
    raise BadInput(
        f"{flag} {value}: among several GPUs, CUDA_VISIBLE_DEVICES selects one: "
        f"CUDA_VISIBLE_DEVICES={number} fieldwatch train normals --device cuda ..."
    )


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


_VALUED = {"--mode": _mode, "--mcube-threshold": _threshold, "--gpu": _gpu}
"""Flags of the original that take a value."""
