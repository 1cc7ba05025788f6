"""Phases of a run, and its events as marks on every chart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fieldwatch.base.json_values import as_objects, is_count
from fieldwatch.record import Manifest
from fieldwatch.record.event_words import FOR_RULES, SHOWN_ELSEWHERE, event_text, event_title
from fieldwatch.report.account.thinning import fair_shares

MOST = 600
"""Maximum number of marks, shared fairly among the kinds of events."""
SILENT = frozenset((*SHOWN_ELSEWHERE, *FOR_RULES, "preflight"))
"""Kinds of events without marks."""


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
        {"kind": kind, "step": int(event["step"]), "title": event_title(kind), "text": event_text(event)}
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
