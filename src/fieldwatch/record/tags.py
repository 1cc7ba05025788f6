"""The tags that the toolkit records under. They are built and taken apart here, and nowhere else."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

TOTAL = "Loss/total"
TOTAL_NORM = "Gradients/total_norm"
LARGEST_GRADIENT = "Gradients/max"
STEP_TIME = "Time/step"

# The first part of a tag, up to its slash: what kind of metric it is.
LOSS = "Loss"
GUARD = "Guard"
SAMPLE = "Sample"
TIME = "Time"
MEMORY = "Memory"
MACHINE = "Machine"

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Family:
    """Tags that differ in one part, as ``Loss/component_<term>``.

    Args:
        prefix: what stands before the part.
        suffix: what stands after it.
        without: a part that is no member: ``Gradients/total_norm`` is not the norm of a group.
    """

    prefix: str
    suffix: str = ""
    without: str | None = None

    def tag(self, part: object) -> str:
        """Return the tag of a part."""
        return f"{self.prefix}{part}{self.suffix}"

    def part(self, tag: str) -> str | None:
        """Return the part that a tag is about; None if the tag is not of this family."""
        long_enough = len(tag) > len(self.prefix) + len(self.suffix)
        if not long_enough or not tag.startswith(self.prefix) or not tag.endswith(self.suffix):
            return None
        part = tag[len(self.prefix) : len(tag) - len(self.suffix)]
        return None if part == self.without else part

    def parts(self, tags: Iterable[str]) -> dict[str, str]:
        """Return the tags of this family by their parts, in the order that they come in."""
        return {part: tag for tag in tags if (part := self.part(tag)) is not None}


COMPONENT = Family("Loss/component_")
WEIGHT = Family("Loss/weight_")
WEIGHTED = Family("Loss/weighted_")
SHARE = Family("Loss/share_")
GRADIENT = Family("Gradients/")
GRADIENT_NORM = Family("Gradients/", "_norm")
GROUP_NORM = Family("Gradients/", "_norm", without="total")
UPDATE_RATIO = Family("Gradients/update_ratio_")
GRADIENT_SHARE = Family("Gradients/share_")
COSINE = Family("Gradients/cosine_")
PARAMETER_MEAN = Family("Parameters/", "_mean")
PARAMETER_STD = Family("Parameters/", "_std")
LEARNING_RATE = Family("LearningRate/")
SPAN = Family("Time/")
MEMORY_READING = Family("Memory/")
MEMORY_SIZE = Family("Memory/", "_MB")
MACHINE_READING = Family("Machine/")
PROCESSOR_READING = Family("Machine/CPU/")
_SAMPLE_LOSS = Family("Sample/", "/loss")


@cache  # asked for every sample of every step
def sample_loss(place: int) -> str:
    """Return the tag of the loss of the sample at a place of the batch."""
    return _SAMPLE_LOSS.tag(place)


def sample_place(tag: str) -> int | None:
    """Return the place in the batch of the sample whose loss a tag is; None for other tags."""
    place = _SAMPLE_LOSS.part(tag)
    return int(place) if place is not None and _NUMBER.fullmatch(place) else None


def gpu_reading(index: int, name: str) -> str:
    """Return the tag of what a graphics card tells, such as its temperature."""
    return f"{MACHINE}/GPU{index}/{name}"


def kind(tag: str) -> str:
    """Return the first part of a tag, up to its slash; the whole tag if it has none."""
    return tag.partition("/")[0]


def is_bookkeeping(tag: str) -> bool:
    """True for tags that journal and history keep and sinks leave out."""
    return kind(tag) in (SAMPLE, GUARD)
