"""What happened when: the phases of a run, and its events as marks on every chart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from fieldwatch.record import Manifest
from fieldwatch.report.account.json_values import as_list, as_mapping, as_objects, is_count, is_number
from fieldwatch.report.account.thinning import fair_shares

MOST = 600
"""Marks altogether; every kind has its fair part of them."""
SILENT = ("plan", "windows", "phase", "preflight")
"""Events that are no mark: they declare, or they stand elsewhere."""
_COUNTS = ("added", "removed", "cloned", "split", "pruned", "relocated", "drawn", "lowered")


def phases_of(manifest: Manifest, events: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the named phases, by the manifest; from ``phase`` events where it names none."""
    if manifest.phases:
        return [{"name": str(name), "first": first, "last": last} for name, first, last in manifest.phases]
    starts = sorted({(int(one["step"]), str(one.get("name", ""))) for one in events if one["kind"] == "phase"})
    ends: list[int | None] = [step - 1 for step, _ in starts[1:]]
    return [
        {"name": name, "first": step, "last": last} for (step, name), last in zip(starts, [*ends, None], strict=False)
    ]


def marks_of(
    manifest: Manifest, events: Sequence[Mapping[str, Any]], crashes: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the marks in order of step: starts, deaths and events.

    A kind that has too many is thinned evenly, and each of it says of how many.
    """
    kinds: dict[str, list[Mapping[str, Any]]] = {}
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
    """Return events with the deaths: post-mortems know the step, events of deaths only where the run went on."""
    if not crashes:
        return list(events)
    return [*(event for event in events if event["kind"] != "died"), *map(_death, crashes)]


def _death(crash: Mapping[str, Any]) -> dict[str, Any]:
    step = crash.get("step")
    told = {"cause": crash.get("cause", "unknown"), "error": crash.get("error", "")}
    return {"kind": "died", "step": max(step, 0) if is_count(step) else 0} | told


def spread(events: Sequence[Mapping[str, Any]], most: int) -> list[Mapping[str, Any]]:
    """Keep so many, evenly over the run, the first and the last among them."""
    if len(events) <= most:
        return list(events)
    ordered = sorted(events, key=lambda event: event["step"])
    places = {round(number * (len(ordered) - 1) / max(most - 1, 1)) for number in range(most)}
    return [ordered[place] for place in sorted(places)]


def counted_kinds(events: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """Return how many events there were of each kind."""
    return dict(Counter(str(event["kind"]) for event in events))


def text_of(event: Mapping[str, Any]) -> str:
    """Say an event in one line."""
    match event["kind"]:
        case "checkpoint":
            values = as_mapping(event.get("metrics")).items()
            told = ", ".join(f"{name} {value:.4g}" for name, value in values if is_number(value))
            return f"{str(event.get('path', 'checkpoint')).rpartition('/')[2]}{': ' + told if told else ''}"
        case "refusal":
            names = [str(name) for key in ("terms", "groups", "samples") for name in as_list(event.get(key))]
            return f"update refused: {', '.join(names[:6]) or 'not finite'}"
        case "finding":
            return f"{event.get('rule', '')}: {event.get('message', '')}"[:240]
        case "growth" | "prune" | "reset":
            counts = [f"{event[key]:,} {key}" for key in _COUNTS if isinstance(event.get(key), int) and event[key]]
            return ", ".join(counts) or str(event["kind"])
        case "resume":
            return f"went on from step {event['step']}"
        case _:
            rest = {key: value for key, value in event.items() if key not in ("kind", "step", "seconds")}
            return ", ".join(f"{key} {str(value)[:80]}" for key, value in rest.items())[:240] or str(event["kind"])
