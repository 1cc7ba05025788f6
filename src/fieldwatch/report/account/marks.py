"""Phases of a run, and its events as marks on every chart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fieldwatch.base import number
from fieldwatch.record import Manifest
from fieldwatch.report.account.json_values import as_list, as_mapping, as_objects, is_count, is_number
from fieldwatch.report.account.thinning import fair_shares

MOST = 600
"""Maximum number of marks, shared fairly among the kinds of events."""
SILENT = ("plan", "windows", "phase", "preflight", "baselines", "data_check", "sample_scores")
"""Kinds of events without marks: they declare something, or other parts of the page show them."""
_COUNTS = ("added", "removed", "cloned", "split", "pruned", "relocated", "drawn", "lowered")
"""Counts of a growth, prune or reset that its mark lists if they are not 0."""


def phases_of(manifest: Manifest, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the phases declared in the manifest; if it declares none, those of the ``phase`` events."""
    if manifest.phases:
        return [{"name": str(name), "first": first, "last": last} for name, first, last in manifest.phases]
    # A set, because every start of the run declares its phases again.
    starts = sorted({(int(event["step"]), str(event.get("name", ""))) for event in events if event["kind"] == "phase"})
    ends: list[int | None] = [step - 1 for step, _ in starts[1:]]
    # Not strict: without any phase there is one end too many.
    return [
        {"name": name, "first": step, "last": last} for (step, name), last in zip(starts, [*ends, None], strict=False)
    ]


def marks_of(
    manifest: Manifest, events: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the marks in order of step: resumes, crashes and events.

    Kinds with too many events are thinned evenly; their marks have the total as ``count``.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    # The first segment is the start of the run, every further one a resume.
    for start in as_objects(manifest.segments)[1:]:
        if is_count(start.get("step")):
            kinds.setdefault("resume", []).append({"kind": "resume", "step": start["step"]})
    for event in with_deaths(events, crashes):
        if event["kind"] not in SILENT:
            kinds.setdefault(str(event["kind"]), []).append(event)
    shares = fair_shares([len(members) for members in kinds.values()], MOST, 2)
    kept = [
        {"kind": kind, "step": int(event["step"]), "text": text_of(event)}
        | ({"count": len(members)} if thinned else {})
        for (kind, members), share in zip(kinds.items(), shares, strict=True)
        for thinned in [len(members) > share]
        for event in spread(members, share)
    ]
    return sorted(kept, key=lambda mark: mark["step"])


def with_deaths(events: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the events with crashes taken from the post-mortems: ``died`` events exist only if the run was resumed."""
    if not crashes:
        return list(events)
    return [*(event for event in events if event["kind"] != "died"), *map(_death, crashes)]


def _death(crash: Mapping[str, Any]) -> dict[str, Any]:
    step = crash.get("step")
    reason = {"cause": crash.get("cause", "unknown"), "error": crash.get("error", "")}
    # A crash before the first step has step -1, which no chart has.
    return {"kind": "died", "step": max(step, 0) if is_count(step) else 0} | reason


def spread(events: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Return at most ``most`` events, evenly spread over the run, including the first and the last."""
    if len(events) <= most:
        return list(events)
    ordered = sorted(events, key=lambda event: event["step"])
    places = {round(position * (len(ordered) - 1) / max(most - 1, 1)) for position in range(most)}
    return [ordered[place] for place in sorted(places)]


def counted_kinds(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return the number of events of each kind."""
    return dict(Counter(str(event["kind"]) for event in events))


def text_of(event: Mapping[str, Any]) -> str:
    """Describe an event in one line."""
    match event["kind"]:
        case "checkpoint":
            values = as_mapping(event.get("metrics")).items()
            metrics = ", ".join(f"{name} {number(value)}" for name, value in values if is_number(value))
            return f"{str(event.get('path', 'checkpoint')).rpartition('/')[2]}{': ' + metrics if metrics else ''}"
        case "refusal":
            names = [str(name) for key in ("terms", "groups", "samples") for name in as_list(event.get(key))]
            return f"update refused: {', '.join(names[:6]) or 'not finite'}"
        case "finding":
            return f"{event.get('rule', '')}: {event.get('message', '')}"[:240]
        case "growth" | "prune" | "reset":
            counts = [f"{event[key]:,} {key}" for key in _COUNTS if isinstance(event.get(key), int) and event[key]]
            return ", ".join(counts) or str(event["kind"])
        case "resume":
            return f"resumed from step {event['step']}"
        case _:
            # Events of user code have any fields of any length.
            rest = {key: value for key, value in event.items() if key not in ("kind", "step", "seconds")}
            return ", ".join(f"{key} {str(value)[:80]}" for key, value in rest.items())[:240] or str(event["kind"])
