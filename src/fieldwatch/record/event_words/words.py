"""Titles and texts of events, the same in every view of a run."""

from collections.abc import Mapping, Sequence
from typing import Any, Final, cast

from fieldwatch.base import nbytes, number
from fieldwatch.base.json_values import as_list, as_mapping, is_number

SHOWN_ELSEWHERE: Final = frozenset(("plan", "ended", "windows", "phase", "baselines", "data_check", "sample_scores"))
"""Kinds of events that declare something or hold data, and that views show in other places than a list of events."""
FOR_RULES: Final = frozenset(
    (
        "batch_of_one",
        "earlier_run",
        "evaluation_mode",
        "frozen_output",
        "frozen_share",
        "yes_no_loss",
        "half_parameters",
        "anomaly_detection",
        "compared_outputs",
        "evaluation_output",
        "foreign_gradient",
        "frozen_norms",
        "kept_tensors",
        "kept_weights",
        "padding_rows",
        "untrained_rows",
        "loop_source",
        "no_steps",
        "chance_level",
        "loose_parameters",
        "loss_floor",
        "loss_form",
        "mode",
        "not_in_optimizer",
        "odd_setting",
        "random_numbers",
        "term_without_gradient",
        "weight_decay",
        "without_gradient",
    )
)
"""Kinds of events with what was measured at the loop. Health rules judge them; readers see the findings."""
_TITLES: Final = {
    "died": "crash",
    "rolled_back": "rollback",
    "preflight": "trial checkpoint",
    "optimizer_fused": "fused optimizer",
    "optimizer_renewed": "new optimizer",
    "requires_grad": "freezing",
    "sink_dropped": "sink stopped",
    "test_mesh": "test of the mesh",
}
_MESSAGES: Final = ("message", "reason", "why", "text")
"""Fields that describe an event in a sentence."""
_COUNTS: Final = ("added", "removed", "cloned", "split", "pruned", "relocated", "drawn", "lowered")
"""Counts of a growth, prune or reset; those that are not 0 are listed."""
_NOT_SHOWN: Final = ("kind", "step", "seconds")
_NAMES: Final = 6
"""Maximum number of refused terms, groups and samples that are listed."""


def event_title(kind: str) -> str:
    """Return the name of a kind of events for readers, such as "checkpoint failed" for ``checkpoint_failed``."""
    return _TITLES.get(kind, kind.replace("_", " "))


def event_text(event: Mapping[str, Any], most: int = 240) -> str:
    """Describe an event in one line.

    Args:
        event: event as it is recorded; events of user code may have any fields.
        most: maximum number of characters.
    """
    match event["kind"]:
        case "checkpoint":
            values = as_mapping(event.get("metrics")).items()
            metrics = ", ".join(f"{name} {number(value)}" for name, value in values if is_number(value))
            text = f"{str(event.get('path', 'checkpoint')).rpartition('/')[2]}{': ' + metrics if metrics else ''}"
        case "refusal":
            names = [str(name) for key in ("terms", "groups", "samples") for name in as_list(event.get(key))]
            text = f"update refused: {', '.join(names[:_NAMES]) or 'not finite'}"
        case "finding":
            text = f"{event.get('rule', '')}: {event.get('message', '')}"
        case "growth" | "prune" | "reset":
            counts = [f"{event[key]:,} {key}" for key in _COUNTS if isinstance(event.get(key), int) and event[key]]
            text = ", ".join(counts) or str(event["kind"])
        case "preflight" if isinstance(event.get("nbytes"), int):
            text = f"{nbytes(event['nbytes'])}, written and read back before the first step"
        case "resume":
            text = f"resumed from step {event['step']}"
        case _:
            text = _described(event)
    return text[:most]


def _described(event: Mapping[str, Any]) -> str:
    """Return the sentence that an event carries, else its fields."""
    for key in _MESSAGES:
        if isinstance(event.get(key), str) and event[key]:
            return str(event[key])
    facts = {key: value for key, value in event.items() if key not in _NOT_SHOWN and value not in (None, [], {}, "")}
    # Events of user code have fields of any length.
    return ", ".join(f"{key.replace('_', ' ')} {_plain(value)[:80]}" for key, value in facts.items())


def _plain(value: object) -> str:
    match value:
        case list() | tuple():
            return " + ".join(map(_plain, cast("Sequence[object]", value)))
        case dict():
            pairs = cast("Mapping[object, object]", value).items()
            return "; ".join(f"{name}: {_plain(each)}" for name, each in pairs)
        case bool():
            return "yes" if value else "no"
        case float():
            return number(value)
        case _:
            return str(value)
