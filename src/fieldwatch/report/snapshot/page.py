"""Memory snapshot in the form of a run's account, which the page's script draws."""

from typing import Any

from fieldwatch.base import nbytes, number, percent
from fieldwatch.report.page import Panel, document, facts, table, text
from fieldwatch.report.snapshot.fields import sanitized
from fieldwatch.report.snapshot.model import Snapshot
from fieldwatch.report.snapshot.page_data import view_data


def snapshot_account(snapshot: Snapshot) -> dict[str, Any]:
    """Return a snapshot in the form of a run's account, for `write_page`.

    Args:
        snapshot: snapshot of the allocator; its names are untrusted.
    """
    data = view_data(snapshot)
    devices = data["devices"]
    failed = sum(len(device["timeline"]["failed"]) for device in devices if device["timeline"])
    reserved = sum(device["totals"]["reserved"] for device in devices)
    headline = f"{nbytes(reserved)} reserved on {len(devices)} GPU{'s' * (len(devices) != 1)}"
    if not devices:
        headline = "No memory: the process had not used CUDA when the snapshot was taken"
    account = document(
        f"Memory of {sanitized(snapshot.path.name)}",
        facts=[f"{name} {value}" for name, value in list(data["settings"].items())[:6]],
        label="Snapshot",
        level="failed" if failed else "notes" if devices else "empty",
        headline=headline,
        detail=f"{failed} request{'s' * (failed != 1)} for memory failed." if failed else "",
        panels=snapshot_panels(data),
    )
    return account | {"snapshot": data}


def snapshot_panels(data: dict[str, Any]) -> list[Panel]:
    """Return the panels of a snapshot; the account that holds them has its data under ``snapshot``.

    Args:
        data: data of the snapshot, from `view_data`.
    """
    panels: list[Panel] = []
    for place, device in enumerate(data["devices"]):
        name = f"cuda:{device['device']}"
        made = [
            _totals(device),
            _allocations(device, place),
            _segments(device, place),
            _sites(device),
            *_notes(device),
        ]
        # The name of the device is in every title only if there are several.
        prefix = f"{name}: " if len(data["devices"]) > 1 else ""
        panels += [panel | {"id": f"{name}-{panel['id']}", "title": prefix + panel["title"]} for panel in made]
    return panels


def _totals(device: dict[str, Any]) -> Panel:
    totals = device["totals"]
    peak = device["peak"]
    free = totals["not_returnable"] + totals["returnable"]
    segments = len(device["segments"]) + device["segments_left"]
    asked = "" if totals["requested"] is None else f", {nbytes(totals['requested'])} requested"
    largest = f", largest free block {nbytes(totals['largest_free'])}"
    pairs = [
        ("reserved", f"{nbytes(totals['reserved'])} in {number(segments)} segments"),
        ("allocated", f"{nbytes(totals['allocated'])}{asked}"),
        ("peak requested", _peak(peak)),
        ("free, returnable", f"{nbytes(totals['returnable'])} in segments without a live block"),
        ("free, not returnable", f"{nbytes(totals['not_returnable'])} between live blocks"),
        ("fragmentation", f"{percent(totals['fragmentation'])}{largest}" if free else "no block is free"),
    ]
    return facts("In short", pairs, "Memory of the allocator when the snapshot was taken.")


def _peak(peak: dict[str, Any] | None) -> str:
    if peak is None:
        return "unknown: no history was recorded"
    when = "when the history began" if peak["event"] < 0 else f"after event {number(peak['event'])}"
    phase = f", in {sanitized(peak['phase'])}" if peak["phase"] else ""
    return f"{nbytes(peak['bytes'])} {when}{phase}"


def _allocations(device: dict[str, Any], place: int) -> Panel:
    title = "Requested memory over the history"
    history = device["timeline"]
    if history is None:
        why = "No history: call torch.cuda.memory._record_memory_history() before taking the snapshot."
        return {"id": "allocations", "title": title, "kind": "empty", "about": "", "why": why}
    begun = "at an unknown time" if history["begin"] == "-" else history["begin"]
    about = [
        f"{number(history['events'])} events since {begun}; earlier peaks are unknown.",
        "Dashed: memory reserved from CUDA.",
        "Drag to zoom, double-click to show all. Keys: arrows move, + and - zoom, Escape shows all.",
    ]
    if history["rest"]:
        about.append(f"The {number(history['rest']['count'])} smallest allocations are drawn as their sum.")
    return {"id": "allocations", "title": title, "kind": "allocations", "about": " ".join(about), "device": place}


def _segments(device: dict[str, Any], place: int) -> Panel:
    title = "Segments and their blocks"
    if not device["segments"]:
        return {"id": "segments", "title": title, "kind": "empty", "about": "", "why": "The snapshot has no segments."}
    about = ["Each bar is a segment, scaled to the full width, the largest first. Arrow keys move between blocks."]
    hidden = sum(segment["hidden"] for segment in device["segments"])
    if device["segments_left"]:
        about.append(f"{number(device['segments_left'])} smaller segments are left out.")
    if hidden:
        about.append(f"{number(hidden)} small blocks are left out.")
    return {"id": "segments", "title": title, "kind": "segments", "about": " ".join(about), "device": place}


def _sites(device: dict[str, Any]) -> Panel:
    columns = (("site", "site", False), ("now", "now", True), ("peak", "at the peak", True))
    more = (("churn", "allocated in all", True), ("count", "allocations", True))
    rows = [
        {"site": {"text": site["name"], "stack": site["stack"]}}
        | {key: site[key] for key in ("now", "peak", "churn", "count")}
        for site in sorted(device["sites"], key=lambda site: -site["peak"])
    ]
    about = "The innermost call outside torch and other generic libraries; press it to see its stack."
    if device["sites_left"]:
        about += f" {number(device['sites_left'])} smaller sites are left out."
    panel = table("Allocation sites", (*columns, *more), rows, about)
    for column in panel["columns"]:
        column["bytes"] = column["key"] in ("now", "peak", "churn")
    return panel


def _notes(device: dict[str, Any]) -> list[Panel]:
    notes = [f"{note['kind']}: {sanitized(note['text'])}" for note in device["notes"]]
    return [text("Notes", notes)] if notes else []
