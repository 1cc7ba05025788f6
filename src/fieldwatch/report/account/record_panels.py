"""Panels of everything except losses, memory and quality: growth, checkpoints, events, config, environment, ranks."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
import orjson

from fieldwatch.base.json_values import as_list, as_mapping, as_objects, is_number
from fieldwatch.record import tags
from fieldwatch.record.config import flattened
from fieldwatch.record.event_words import FOR_RULES, SHOWN_ELSEWHERE, event_text, event_title
from fieldwatch.registry import population_of
from fieldwatch.report.account.marks import counted_kinds, spread, with_deaths
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.run_status import command_of
from fieldwatch.report.account.series import derived, number
from fieldwatch.report.account.thinning import fair_shares
from fieldwatch.report.growth import LedgerEntry, chosen_entries, growth_ledger, totals_of, totals_text
from fieldwatch.report.page import Panel, facts, group, lines, table
from fieldwatch.report.ranks import RANKS, RankFacts, read_ranks

SIZE = "Growth/size"
"""Series derived from the ledger, for runs that do not record Model/size."""
_EVENTS = 400
"""Maximum number of events in the table."""
_CHECKPOINTS = 200
_LINES = 12
"""Maximum number of lines of a chart."""
_VARIABLE_PART = re.compile(r"<\w+>")


def growth(material: Material) -> Panel:
    """Return the ledger of densifications, prunes and resets; empty if the model's size never changed."""
    population = population_of(material.folder)
    about = f"How the number of {population} changed: every growth, prune and reset."
    why = "The size of the model never changed: no growth, prune or reset was recorded."
    if not material.of_kind("growth", "prune", "reset"):
        return group("growth", "Growth", about, [], why)
    try:
        entries = growth_ledger(material.folder, material.history)
    except ValueError as error:
        return group("growth", "Growth", about, [], f"The ledger cannot be computed: {error}")
    parts: list[Panel] = []
    name = "Model/size" if "Model/size" in material.series else SIZE
    if name == SIZE and entries[-1].after:
        steps, sizes = (np.array([getattr(entry, key) for entry in entries], np.float64) for key in ("step", "after"))
        material.series[SIZE] = derived(steps, sizes, f"{population} after each event.")
    if name in material.series:
        parts.append(lines(population, [name], "Over the steps.", labels={name: population}))
    totals = totals_of(entries)
    parts.append(facts("Sums", _sums(asdict(totals)), totals_text(totals, population).plain))
    chosen = chosen_entries(entries)
    parts.append(table("Ledger", _LEDGER, map(_ledger_row, chosen), f"{len(chosen)} of {len(entries)} events."))
    return group("growth", "Growth", about, parts, why)


def checkpoints(material: Material) -> Panel:
    """Return the table of checkpoints; the best one is marked."""
    saved = material.of_kind("checkpoint")
    why = "No checkpoint was recorded: run.track(...) sets what to save, Saving(every=...) how often."
    if not saved:
        return group("checkpoints", "Checkpoints", "What was saved, and which checkpoint is best.", [], why)
    names = sorted({name for event in saved for name in _metrics(event)})
    rows = [_checkpoint(material, event) for event in saved]
    best = _best(material, rows, names)
    for row in rows:
        # Compared by identity: after a rollback, two checkpoints may have equal rows.
        labels = [label for label, labeled in (("best", best), ("last", rows[-1])) if row is labeled]
        row["rank"] = ", ".join(labels)
    kept = [row for row in rows if row["kept"] == "yes"]
    # Those on disk first: they can be resumed from.
    listed = sorted(rows, key=lambda row: (row["kept"] != "yes", -row["step"]))[:_CHECKPOINTS]
    columns = [("step", "step", True), ("rank", "rank", False), *((name, name, True) for name in names)]
    columns += [("kept", "on disk", False), ("size", "MiB", True), ("stall_ms", "stall, ms", True)]
    columns += [("took_ms", "took, ms", True), ("path", "path", False)]
    about = f"{len(rows)} were written, {len(kept)} are on disk."
    return table("Checkpoints", columns, listed, about) | {"id": "checkpoints"}


def events_panel(material: Material) -> Panel:
    """Return the events in order, frequent kinds thinned, with the number of events of each kind."""
    left_out = SHOWN_ELSEWHERE | FOR_RULES
    events = [event for event in material.events if event["kind"] not in left_out]
    counts = counted_kinds(events)
    if not counts:
        return group("events", "Events", "What happened, in order.", [], "No event was recorded yet.")
    kept = _sampled_events(with_deaths(events, material.status.crashes))
    rows = [{"step": one["step"], "kind": event_title(str(one["kind"])), "text": event_text(one)} for one in kept]
    rows.sort(key=lambda row: row["step"])
    columns = (("step", "step", True), ("kind", "kind", False), ("text", "what", False))
    about = ", ".join(
        f"{event_title(kind)} {count:,}" for kind, count in sorted(counts.items(), key=lambda pair: -pair[1])
    )
    return table("Events", columns, rows, about) | {"id": "events"}


def config(material: Material) -> Panel:
    """Return the table of settings, those that differ from the preset first."""
    chosen = flattened(as_mapping(material.manifest.config))
    changed = as_mapping(material.manifest.preset_difference)
    if not chosen:
        why = "No config was recorded: pass it as Run(folder, config=...)."
        return group("config", "Config", "The settings.", [], why)
    rows: list[dict[str, Any]] = []
    for key, value in chosen.items():
        # A difference is recorded as [preset's value, chosen value].
        pair = as_list(changed.get(key))
        differs = len(pair) == 2
        rows.append(
            {"key": key, "value": _plain(value), "preset": _plain(pair[0]) if differs else "", "changed": differs}
        )
    rows.sort(key=lambda row: not row["changed"])
    columns = (("key", "setting", False), ("value", "value", False), ("preset", "preset's value", False))
    count = sum(row["changed"] for row in rows)
    about = f"{len(rows)} settings, {count or 'none'} of them different from the preset."
    return table("Config", columns, rows, about) | {"id": "config"}


def environment(material: Material) -> Panel:
    """Return versions, git commit, machine and command of each start, and the run's description of its data."""
    manifest = material.manifest
    pairs: list[tuple[str, Any]] = [*as_mapping(manifest.versions).items()]
    git = as_mapping(manifest.git)
    segments = as_objects(manifest.segments)
    if git:
        dirty = " with uncommitted changes" if git.get("dirty") else ""
        pairs.append(("git commit", f"{git.get('commit', '')}{dirty}"))
    for place, segment in enumerate(segments, 1):
        start = f"start {place}" if len(segments) > 1 else "start"
        # An imported run does not know its machine, and maybe not its time.
        host = f"on {segment['host']}" if segment.get("host") else ""
        words = (segment.get("started"), host, f"at step {segment.get('step')}")
        pairs.append((start, " ".join(str(word) for word in words if word)))
        pairs.append((f"command of {start}", command_of(segment)))
    about = flattened(as_mapping(manifest.about))
    pairs += [(f"about: {key.replace('_', ' ')}", _listed(value)) for key, value in about.items() if _is_told(value)]
    return facts("Environment", pairs, "Where and with which versions the run was started.") | {"id": "environment"}


def ranks(material: Material) -> list[Panel]:
    """Return the table of the ranks of a distributed training; nothing for a single process."""
    if not (material.folder / RANKS).is_dir():
        return []
    try:
        members = read_ranks(material.folder)
    except ValueError as error:
        # The record of another rank must not hide that of the run.
        why = f"The records of the ranks cannot be read: {error}"
        return [group("ranks", "Ranks", "The processes of the training.", [], why)]
    columns = (("rank", "rank", True), ("host", "host", False), ("pid", "pid", True), ("step", "last step", True))
    columns += (("allocated", "allocated, MiB", True), ("peak", "peak, MiB", True))
    columns += (("reserved", "reserved, MiB", True), ("step_ms", "step time, ms", True))
    about = f"The {len(members)} processes of this training, side by side."
    return [table("Ranks", columns, map(_rank, members), about) | {"id": "ranks"}]


def more(material: Material, panels: Sequence[Panel]) -> Iterator[Panel]:
    """Yield a panel for each group of metrics that no other panel shows, so that every recorded metric is visible.

    Args:
        material: data about the run.
        panels: all other panels.
    """
    visible = set(_names_in(panels))
    groups: dict[str, list[str]] = {}
    for name in material.series:
        if name not in visible and not tags.is_bookkeeping(name):
            groups.setdefault(name.partition("/")[0] if "/" in name else "Other", []).append(name)
    for title, names in groups.items():
        parts = [
            lines(_title(chart), members[at : at + _LINES], "By step.", labels=_labels(members, chart))
            for chart, members in _charts(material, names).items()
            for at in range(0, len(members), _LINES)
        ]
        # The prefix of a metric may be any text, an id may not.
        identity = f"more-{title.lower()}" if title.isalnum() else "more-other"
        yield group(identity, title, f"Further metrics of this run: {title}.", parts, "")


def _charts(material: Material, names: Sequence[str]) -> dict[str, list[str]]:
    """Group metrics into charts: by declared pattern, else by unit and by the name without its last part."""
    charts: dict[str, list[str]] = {}
    # Statistics/xyz_mean and Statistics/scale_mean share a chart, since their common ending says what is measured.
    counts = Counter(name.rpartition("_")[2] for name in names if "_" in name)
    endings = {ending: ending for ending, count in counts.items() if count > 1}
    for name in names:
        metric = material.catalogue.find(name)
        head, _, tail = name.rpartition("/")
        unit = material.series[name]["unit"]
        title = f"{head}, {unit}" if unit else head
        if metric is not None and "<" in metric.name:
            title = metric.name
        elif "/" not in head:
            title = title if unit else endings.get(tail.rpartition("_")[2], tail)
        charts.setdefault(title, []).append(name)
    return charts


def _title(chart: str) -> str:
    """Return the title of a chart: "Parameters, mean" for the pattern ``Parameters/<group>_mean``."""
    return ", ".join(filter(None, (word.strip("/_ ") for word in _VARIABLE_PART.split(chart))))


def _labels(names: Sequence[str], chart: str) -> dict[str, str]:
    """Map names to labels without the part that the title of the chart already contains."""
    head = f"{chart.partition(', ')[0].rpartition('/')[0] if '<' in chart else chart.partition(', ')[0]}/"
    return {name: name.removeprefix(head) for name in names}


def _names_in(panels: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield the metrics that panels show, in charts or as rows of a table."""
    for panel in panels:
        yield from panel.get("series", ())
        yield from (row["metric"] for row in panel.get("rows", ()) if "metric" in row)
        yield from _names_in(panel.get("parts", ()))


_LEDGER = (
    ("step", "step", True),
    ("kind", "event", False),
    ("before", "before", True),
    ("after", "after", True),
    ("cloned", "cloned", True),
    ("split", "split", True),
    ("pruned", "pruned", True),
    ("too_large", "of these for size", True),
    ("relocated", "moved", True),
    ("drawn", "drawn", True),
    ("held_back", "held back", True),
    ("lowered", "lowered", True),
    ("loss_before", "loss before", True),
    ("loss_after", "loss after", True),
    ("psnr_change", "PSNR, dB", True),
    ("recovered_after", "recovered after", True),
    ("memory_before", "MiB before", True),
    ("memory_after", "MiB after", True),
    ("lasting", "lasting fall", False),
)


def _ledger_row(entry: LedgerEntry) -> dict[str, Any]:
    # number() turns NaN, which JSON does not have, into None.
    row = {key: number(value) if isinstance(value, float) else value for key, value in asdict(entry).items()}
    return {key: row.get(key) for key, _, _ in _LEDGER} | {"lasting": "yes" if entry.lasting else ""}


def _sums(totals: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for name, value in totals.items():
        # Counts only: `lasting` is a tuple of steps, which the text above them lists.
        if isinstance(value, int) and value:
            yield name.replace("_", " "), f"{value:,}"


def _metrics(event: Mapping[str, Any]) -> Mapping[str, float]:
    return {name: value for name, value in as_mapping(event.get("metrics")).items() if is_number(value)}


def _checkpoint(material: Material, event: Mapping[str, Any]) -> dict[str, Any]:
    path = str(event.get("path", ""))
    saved = material.folder / path if path else None
    # The path comes from the events file, which is untrusted: it must not leave the run folder.
    exists = saved is not None and ".." not in path and saved.exists()
    size = sum(file.stat().st_size for file in saved.rglob("*") if file.is_file()) if exists and saved else None
    if exists and saved and saved.is_file():
        size = saved.stat().st_size
    row: dict[str, Any] = {"step": event["step"], "path": path, "kept": "yes" if exists else "no"}
    row |= {"size": round(size / 2**20, 3) if size is not None else None}
    return row | {key: event.get(key) for key in ("stall_ms", "took_ms")} | dict(_metrics(event))


def _best(material: Material, rows: Sequence[dict[str, Any]], names: Sequence[str]) -> dict[str, Any] | None:
    """Return the best checkpoint by the first metric with a known better direction; None if there is none."""
    for name in names:
        known = [row for row in rows if row.get(name) is not None]
        better = _better(material, name)
        if known and better:
            return (max if better == "higher" else min)(known, key=lambda row: row[name])
    return None


def _better(material: Material, name: str) -> str:
    """Return the better direction of a checkpoint's metric; empty if it is unknown."""
    # Checkpoints name their metrics freely: "psnr" is Eval/PSNR.
    directions = [series["better"] for tag, series in material.series.items() if tag.lower().endswith(name.lower())]
    known = [better for better in directions if better]
    if known:
        return known[0]
    word = name.lower()
    if any(part in word for part in ("psnr", "ssim", "iou", "score", "accuracy")):
        return "higher"
    return "lower" if any(part in word for part in ("loss", "error", "mae", "lpips", "chamfer", "l1")) else ""


def _sampled_events(events: list[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return at most `_EVENTS` events: rare kinds completely, frequent ones evenly thinned."""
    kinds: dict[str, list[Mapping[str, Any]]] = {}
    for event in events:
        kinds.setdefault(str(event["kind"]), []).append(event)
    shares = fair_shares([len(members) for members in kinds.values()], _EVENTS, 4)
    return [event for members, share in zip(kinds.values(), shares, strict=True) for event in spread(members, share)]


def _rank(rank: RankFacts) -> dict[str, Any]:
    return {key: number(value) if isinstance(value, float) else value for key, value in asdict(rank).items()}


def _is_told(value: Any) -> bool:
    return value is not None and value not in ([], {}, "")


def _listed(value: Any) -> str:
    """Return a list as text with commas, other values as in the table of settings."""
    items = as_list(value)
    return ", ".join(map(_plain, items)) if items else _plain(value)


def _plain(value: Any) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()
