"""Tag names used by the toolkit. All tags are built and parsed in this module."""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Self

TOTAL = "Loss/total"
TOTAL_NORM = "Gradients/total_norm"
LARGEST_GRADIENT = "Gradients/max"
CLIP_SCALE = "Gradients/clip_scale"
STEP_TIME = "Time/step"
UNCLEARED = "Guard/uncleared_gradient"
ZERO_GRADIENT = "Guard/zero_gradient"
HALF_GRADIENT = "Guard/half_gradient"
BASELINES = "baselines"
"""Kind of the event that declares values of metrics without training."""
DATA_CHECK = "data_check"
"""Kind of the event with what the check of the data found before the first step: ``name``, ``severity``, ``message``,
``remedy``, ``certain``."""
SAMPLE_SCORES = "sample_scores"
"""Kind of the event with the scores of single samples at an evaluation: ``metric``, ``better``, ``values`` by name."""

LOOP_SOURCE = "loop_source"
"""Kind of the event with the lines of a loop: ``file``, ``line``, ``lines`` by kind, ``order`` and ``loaders``."""
NO_STEPS = "no_steps"
"""Kind of the event of a training that was prepared and made no step: ``loaders`` without a batch, if any."""
KEPT_WEIGHTS = "kept_weights"
"""Kind of the event with a variable that holds the weights of a module: ``name``, ``item``, ``shared``."""
EVALUATION_OUTPUT = "evaluation_output"
"""Kind of the event with what a second forward of an evaluation shows: ``item``, ``random``, ``others``, ``inline``."""
PADDING_ROWS = "padding_rows"
"""Kind of the event with look-ups of the row of an embedding that stays 0: ``name``, ``index``, ``share``."""
UNTRAINED_ROWS = "untrained_rows"
"""Kind of the event with look-ups of rows of an embedding that no update has changed: ``name``, ``share``."""
FROZEN_NORMS = "frozen_norms"
"""Kind of the event with batch norms of frozen parts whose statistics have moved: ``item``, ``names``, ``drift``."""
FOREIGN_GRADIENT = "foreign_gradient"
"""Kind of the event with gradients that another loss has left in a module: ``optimizer``, ``other``, ``updates``."""
KEPT_TENSORS = "kept_tensors"
"""Kind of the event with tensors that are alive at the end with their graphs: ``count``, ``nbytes``, ``holder``."""

PROCESSOR = "Performance/processor_ms"
"""Metric of the processor time per step."""

# Top-level groups: the part of a tag before its first slash.
LOSS = "Loss"
GUARD = "Guard"
FORWARD = "Forward"
SAMPLE = "Sample"
TIME = "Time"
MEMORY = "Memory"
MACHINE = "Machine"

_NUMBER = re.compile(r"\d+")


@dataclass(frozen=True)
class Family:
    """Tags that differ only in one variable part, such as ``Loss/component_<term>``.

    Args:
        prefix: text before the variable part.
        suffix: text after the variable part.
        without: excluded value of the variable part: ``Gradients/total_norm`` is not the norm of a group.
    """

    prefix: str
    suffix: str = ""
    without: str | None = None

    def tag(self, part: object) -> str:
        """Return the tag with ``part`` filled in."""
        return f"{self.prefix}{part}{self.suffix}"

    def part(self, tag: str) -> str | None:
        """Return the variable part of a tag, or None if the tag is not a member of this family."""
        # Prefix and suffix must not overlap: ``Gradients/_norm`` alone names no group.
        long_enough = len(tag) > len(self.prefix) + len(self.suffix)
        if not long_enough or not tag.startswith(self.prefix) or not tag.endswith(self.suffix):
            return None
        part = tag[len(self.prefix) : len(tag) - len(self.suffix)]
        return None if part == self.without else part

    def parts(self, tags: Iterable[str]) -> dict[str, str]:
        """Map the variable part of each member to its tag, in input order; other tags are ignored."""
        # The rules ask for many families of the same names, at every examination.
        if isinstance(tags, Names):
            found = tags.families.get(self)
            if found is None:
                group, slash, _ = self.prefix.partition("/")
                found = tags.families[self] = self._parts(tags.of_kind(group) if slash else tags)
            return found.copy()
        return self._parts(tags)

    def _parts(self, tags: Iterable[str]) -> dict[str, str]:
        return {part: tag for tag in tags if (part := self.part(tag)) is not None}


class Names(tuple[str, ...]):  # noqa: SLOT001  a tuple cannot have slots besides its entries
    """Names of recorded metrics, which keep the members of each family that was asked for.

    Attributes:
        families: result of :meth:`Family.parts` by family.
    """

    families: dict[Family, dict[str, str]]
    _kinds: dict[str, list[str]]

    def __new__(cls, names: Iterable[str]) -> Self:
        """Create the names without any family."""
        made = super().__new__(cls, names)
        made.families = {}
        made._kinds = {}
        return made

    def of_kind(self, group: str) -> Sequence[str]:
        """Return the names before whose first slash is a text, in order."""
        if not self._kinds:
            for name in self:
                self._kinds.setdefault(kind(name), []).append(name)
        return self._kinds.get(group, ())


COMPONENT = Family("Loss/component_")
WEIGHT = Family("Loss/weight_")
WEIGHTED = Family("Loss/weighted_")
SHARE = Family("Loss/share_")
GRADIENT = Family("Gradients/")
GRADIENT_NORM = Family("Gradients/", "_norm")
GROUP_NORM = Family("Gradients/", "_norm", without="total")
GROUP_CLIP_SCALE = Family("Gradients/", "_clip_scale")
UPDATE_RATIO = Family("Gradients/update_ratio_")
FIRST_UPDATE = Family("Gradients/first_update_")
GRADIENT_SHARE = Family("Gradients/share_")
COSINE = Family("Gradients/cosine_")
GROUP_MOMENTS = Family("Guard/moments_")
PARAMETER_MEAN = Family("Parameters/", "_mean")
PARAMETER_STD = Family("Parameters/", "_std")
LEARNING_RATE = Family("LearningRate/")
INPUT_MEAN = Family("Forward/", "_input_mean")
INPUT_STD = Family("Forward/", "_input_std")
INPUT_RATIO = Family("Forward/", "_input_ratio")
INPUT_MARK = Family("Forward/", "_input_mark")
INPUT_SPREAD = Family("Forward/", "_input_spread")
OUTPUT_SPREAD = Family("Forward/", "_output_spread")
OUTPUT_SHARE = Family("Forward/", "_output_share")
EVALUATION_INPUT_MEAN = Family("Forward/", "_evaluation_input_mean")
EVALUATION_INPUT_STD = Family("Forward/", "_evaluation_input_std")
EVALUATION_INPUT_SHIFT = Family("Forward/", "_evaluation_input_shift")
EVALUATION_ARGUMENT_SHIFT = Family("Forward/", "_evaluation_argument_shift")
EVALUATION_PADDING = Family("Forward/", "_evaluation_padding")
EVALUATION_START = Family("Forward/", "_evaluation_start")
EVALUATION_OUTPUT_STD = Family("Forward/", "_evaluation_output_std")
EVALUATION_OUTPUT_SHIFT = Family("Forward/", "_evaluation_output_shift")
OUTPUT_STD = Family("Forward/", "_output_std")
SIMPLE_COUNT = Family("Forward/", "_simple_count")
LINEAR_HITS = Family("Forward/", "_linear_hits")
NEAREST_HITS = Family("Forward/", "_nearest_hits")
LINEAR_EXPLAINED = Family("Forward/", "_linear_explained")
NEAREST_EXPLAINED = Family("Forward/", "_nearest_explained")
COPIED = Family("Forward/", "_copied_input")
TARGETS_GIVEN = Family("Forward/", "_targets_given")
POSITION_SPREAD = Family("Forward/", "_position_spread")
FUTURE_SPREAD = Family("Forward/", "_future_spread")
CLASS_SUM = Family("Forward/", "_class_sum")
BATCH_SUM = Family("Forward/", "_batch_sum")
HITS = Family("Forward/", "_hits")
IMPLIED_LOSS = Family("Forward/", "_implied_loss")
TARGET_ENTROPY = Family("Forward/", "_target_entropy")
BATCH_ENTROPY = Family("Forward/", "_batch_entropy")
TARGET_SHARE = Family("Forward/", "_target_share")
WEIGHT_SLOPE = Family("Forward/", "_weight_slope")
SOFTMAX_TWICE = Family("Forward/", "_softmax_twice")
NO_LOGARITHM = Family("Forward/", "_no_logarithm")
BLANK_SHARE = Family("Forward/", "_blank_share")
NEXT_SHARE = Family("Forward/", "_next_share")
SAME_SHARE = Family("Forward/", "_same_share")
ERROR_SQUARE = Family("Forward/", "_error_square")
ERROR_VARIANCE = Family("Forward/", "_error_variance")
ERROR_COVARIANCE = Family("Forward/", "_error_covariance")
OUTPUT_VARIANCE = Family("Forward/", "_output_variance")
TARGET_LOW = Family("Forward/", "_target_low")
TARGET_HIGH = Family("Forward/", "_target_high")
TARGET_FRACTION = Family("Forward/", "_target_fraction")
UNUSED_SHARE = Family("Forward/", "_unused_share")
LIVE_SHARE = Family("Forward/", "_live_share")
BINARY_SPREAD = Family("Forward/", "_binary_spread")
BINARY_HITS = Family("Forward/", "_binary_hits")
BINARY_SHARE = Family("Forward/", "_binary_share")
BINARY_GUESS = Family("Forward/", "_binary_guess")
BINARY_OVERLAP = Family("Forward/", "_binary_overlap")
BINARY_LOSS = Family("Forward/", "_binary_loss")
ARGUMENT_SPREAD = Family("Forward/", "_argument_spread")
UNIT_SPREAD = Family("Forward/", "_unit_spread")
AVERAGE = Family("Forward/", "_average_way")
INPUT_ROUNDED = Family("Forward/", "_input_rounded")
EVALUATION_SEEN = Family("Forward/", "_evaluation_seen")
WRONG_PAIRS = Family("Forward/", "_wrong_pairs")
WRONG_SHARE = Family("Forward/", "_wrong_share")
BASELINE = Family("Baseline/")
"""Value that a metric reaches without training: ``Baseline/Eval/psnr`` is the baseline of ``Eval/psnr``."""
SPAN = Family("Time/")
MEMORY_READING = Family("Memory/")
MEMORY_SIZE = Family("Memory/", "_MB")
MACHINE_READING = Family("Machine/")
PROCESSOR_READING = Family("Machine/CPU/")
_SAMPLE_LOSS = Family("Sample/", "/loss")


@cache  # called for every sample of every step
def sample_loss(place: int) -> str:
    """Return the tag for the loss of the sample at a 0-based index of the batch."""
    return _SAMPLE_LOSS.tag(place)


def sample_place(tag: str) -> int | None:
    """Return the batch index encoded in a per-sample loss tag, or None for other tags."""
    index = _SAMPLE_LOSS.part(tag)
    return int(index) if index is not None and _NUMBER.fullmatch(index) else None


def gpu_reading(index: int, name: str) -> str:
    """Return the tag of a GPU reading, such as its temperature."""
    return f"{MACHINE}/GPU{index}/{name}"


def kind(tag: str) -> str:
    """Return the part of a tag before its first slash, or the whole tag if it has no slash."""
    return tag.partition("/")[0]


def is_bookkeeping(tag: str) -> bool:
    """Whether a tag is kept in journal and history but not sent to sinks."""
    # Per-sample losses are too many for charts; guard values matter only to rules and reports.
    return kind(tag) in (SAMPLE, GUARD, FORWARD)
