"""Signatures of kernels, as their sources declare them."""

import re
from dataclasses import dataclass

_KERNEL = re.compile(r"^KERNEL\((\w+),\s*(\w+),\s*([^)]*)\)\s*\{", re.MULTILINE)
_LIST = re.compile(r"LISTED\s+List<([^>]*)>\s*(\w+)")
_CONSTANT = r"^#define {} (\d+)\b"
NUMBERS = ("int", "int64_t", "float", "double")
"""Types of numbers that a kernel takes."""
ELEMENTS = (*NUMBERS, "uint8_t")
"""Types of elements of tensors that a kernel takes."""
MOST_LISTED = 16
"""Most tensors or numbers in a `List`, as in kernel.h."""


@dataclass(frozen=True)
class KernelParameter:
    """A parameter of a kernel.

    Attributes:
        name: its name in the source.
        kind: its type without `const` and `*`.
        pointer: whether it is a tensor.
        listed: whether it is a list of them.
    """

    name: str
    kind: str
    pointer: bool
    listed: bool = False


@dataclass(frozen=True)
class KernelSignature:
    """A kernel as its source declares it.

    Attributes:
        name: its name in the source.
        threads: threads per block.
        parameters: its parameters, in order.
    """

    name: str
    threads: int
    parameters: tuple[KernelParameter, ...]


def signatures(text: str) -> dict[str, KernelSignature]:
    """Return the kernels that a source declares, by name.

    Raises:
        ValueError: a parameter has a type that kernels do not take, or the number of threads is not in the file.
    """
    found = [(match[1], match[2], match[3]) for match in _KERNEL.finditer(text)]
    return {
        name: KernelSignature(name, _threads(text, threads), _parameters(listed)) for name, threads, listed in found
    }


def _threads(text: str, given: str) -> int:
    if given.isdigit():
        return int(given)
    constant = re.search(_CONSTANT.format(given), text, re.MULTILINE)
    if constant is None:
        raise ValueError(f"the threads of a block are a number or a #define of the same file, got {given}")
    return int(constant[1])


def _parameters(listed: str) -> tuple[KernelParameter, ...]:
    return tuple(_parameter(part) for part in listed.split(","))


def _parameter(text: str) -> KernelParameter:
    listed = _LIST.fullmatch(text.strip())
    declared = f"{listed[1]} {listed[2]}" if listed else text
    words = declared.replace("*", " * ").replace("__restrict__", " ").split()
    kind = next(word for word in words if word not in {"const", "*"})
    if kind not in (ELEMENTS if "*" in words else NUMBERS):
        raise ValueError(
            f"a parameter is a number, a pointer to one of {', '.join(ELEMENTS)}, or a List of either, "
            f"got {text.strip()!r}"
        )
    return KernelParameter(words[-1], kind, "*" in words, bool(listed))
