"""One account for several runs: charts with a line per run, and a table of their verdicts."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from fieldwatch.record import tags
from fieldwatch.report.compare import meaning_of

MOST_CHARTS: Final = 48
_LEVELS: Final = ("failed", "findings", "running", "notes", "empty", "healthy")
"""Levels of a verdict, worst first."""
_EMPTY_SERIES: Final[Mapping[str, Any]] = {
    "rows": 0,
    "x": [],
    "y": [],
    "bad": [],
    "thinned": False,
    "last": None,
    "min": None,
    "max": None,
}
_SEPARATOR: Final = " · "

Accounts = Mapping[str, Mapping[str, Any]]
Panel = dict[str, Any]


def side_by_side_account(accounts: Accounts) -> dict[str, Any]:
    """Return one account of at least two runs, which the panels draw like that of a single run.

    Args:
        accounts: accounts by name of the run, in order.
    """
    metrics = _shared_metrics(accounts)
    drawn = metrics[:MOST_CHARTS]
    # The longest run sets the range of the axes.
    longest = max(accounts.values(), key=lambda account: account["run"]["last_step"] or 0)
    return {
        "format": 1,
        "run": {**longest["run"], "name": " / ".join(accounts), "rows": 0, "segments": [], "resume": ""},
        "verdict": _verdict(accounts),
        # Findings and marks of several runs on the same charts would be taken for those of one.
        "findings": [],
        "crash": None,
        "phases": _shared_phases(accounts),
        "marks": [],
        "series": {_key(metric, name): _series(accounts[name], metric) for metric in drawn for name in accounts},
        "panels": [_verdicts(accounts), _values(accounts, metrics), *_charts(accounts, drawn), _config(accounts)],
        "json_of": longest["json_of"],
    }


def _verdict(accounts: Accounts) -> dict[str, str]:
    """Return the worst verdict and the runs that have it."""
    levels = {name: account["verdict"]["level"] for name, account in accounts.items()}
    # An unknown level counts as the worst, so that it is not hidden.
    worst = min(levels.values(), key=lambda level: _LEVELS.index(level) if level in _LEVELS else 0)
    names = ", ".join(name for name, level in levels.items() if level == worst)
    scope = "" if len(set(levels.values())) > 1 else "all of them: "
    return {"level": worst, "title": f"{len(accounts)} runs side by side", "detail": f"{worst}: {scope}{names}."}


def _shared_metrics(accounts: Accounts) -> list[str]:
    """Return the metrics that at least two runs recorded, most important first."""
    counts: dict[str, int] = {}
    for account in accounts.values():
        for metric in account["series"]:
            counts[metric] = counts.get(metric, 0) + 1
    shared = (metric for metric, count in counts.items() if count > 1)
    return sorted(shared, key=lambda name: (meaning_of(name).rank, name))


def _shared_phases(accounts: Accounts) -> list[Any]:
    phases = [account["phases"] for account in accounts.values()]
    return phases[0] if all(each == phases[0] for each in phases) else []


def _key(metric: str, name: str) -> str:
    return f"{metric}{_SEPARATOR}{name}"


def _series(account: Mapping[str, Any], metric: str) -> Mapping[str, Any]:
    """Return a series of a run; a missing one is empty, so that each run keeps its color in all charts."""
    series = account["series"].get(metric)
    return series or {**_EMPTY_SERIES, "unit": "", "meaning": "not recorded by this run", "better": "", "axis": "step"}


def _charts(accounts: Accounts, metrics: Sequence[str]) -> Iterator[Panel]:
    """Yield a group of charts per family of tags."""
    families: dict[str, list[Panel]] = {}
    for metric in metrics:
        keys = [_key(metric, name) for name in accounts]
        labels = dict(zip(keys, accounts, strict=True))
        chart = {"id": f"compare-{metric}", "title": metric, "kind": "lines", "about": _meaning(accounts, metric)}
        chart |= {"series": keys, "labels": labels, "log": tags.kind(metric) == tags.LOSS}
        families.setdefault(metric.split("/")[0], []).append(chart)
    for family, parts in families.items():
        about = f"One chart per metric of {family}, a line per run."
        yield {"id": f"compare-{family}-group", "title": family, "kind": "group", "about": about, "parts": parts}


def _meaning(accounts: Accounts, metric: str) -> str:
    known = [account["series"][metric]["meaning"] for account in accounts.values() if metric in account["series"]]
    return next((meaning for meaning in known if meaning), "")


def _verdicts(accounts: Accounts) -> Panel:
    about = "Verdict and worst finding of each run."
    columns = [
        {"key": "run", "title": "run", "number": False},
        {"key": "verdict", "title": "verdict", "number": False},
        {"key": "state", "title": "state", "number": False},
        {"key": "step", "title": "last step", "number": True},
        {"key": "findings", "title": "findings", "number": True},
        {"key": "worst", "title": "worst finding", "number": False},
    ]
    rows = [_verdict_row(name, account) for name, account in accounts.items()]
    return {"id": "verdicts", "title": "Verdicts", "kind": "table", "about": about, "columns": columns, "rows": rows}


def _verdict_row(name: str, account: Mapping[str, Any]) -> dict[str, Any]:
    worst = next(iter(account["findings"]), None)
    return {
        "run": name,
        "verdict": account["verdict"]["title"],
        "state": account["run"]["state"],
        "step": account["run"]["last_step"],
        "findings": len(account["findings"]),
        "worst": f"{worst['rule']} at step {worst['step']}: {worst['message']}" if worst else "",
    }


def _values(accounts: Accounts, metrics: Sequence[str]) -> Panel:
    """Return the table of last values; it names the best run if the better direction is known."""
    about = "The newest value of every metric that at least two of the runs recorded."
    if len(metrics) > MOST_CHARTS:
        about += f" Charts of the first {MOST_CHARTS} of these {len(metrics)} are below."
    # Keys are numbered, because a run may be called "metric" or "best".
    titles = [{"key": f"run {i}", "title": name, "number": True} for i, name in enumerate(accounts)]
    columns = [{"key": "metric", "title": "metric", "number": False}, *titles]
    columns.append({"key": "best", "title": "best", "number": False})
    rows = [_value_row(accounts, metric) for metric in metrics]
    if not rows:
        return _empty_panel(
            "values", "Newest values", "The runs have no metric in common: compare runs of one pipeline."
        )
    return {"id": "values", "title": "Newest values", "kind": "table", "about": about, "columns": columns, "rows": rows}


def _value_row(accounts: Accounts, metric: str) -> dict[str, Any]:
    series = [account["series"].get(metric, {}) for account in accounts.values()]
    last_values = [entry.get("last") for entry in series]
    better = next((entry["better"] for entry in series if entry.get("better")), meaning_of(metric).better)
    row: dict[str, Any] = {"metric": metric, **{f"run {i}": value for i, value in enumerate(last_values)}}
    return row | {"best": _best(dict(zip(accounts, last_values, strict=True)), better)}


def _best(values: Mapping[str, float | None], better: str) -> str:
    known = {name: value for name, value in values.items() if value is not None}
    # Equal values have no best one.
    if better not in ("lower", "higher") or len(known) < 2 or len(set(known.values())) == 1:
        return ""
    return (min if better == "lower" else max)(known, key=lambda name: known[name])


def _config(accounts: Accounts) -> Panel:
    configs = {name: _flat_config(account) for name, account in accounts.items()}
    keys = sorted({key for config in configs.values() for key in config})
    differing = [key for key in keys if len({config.get(key) for config in configs.values()}) > 1]
    title = "Config: what differs"
    if not differing:
        return _empty_panel("config-differences", title, "The runs have the same config.")
    columns = [{"key": "key", "title": "key", "number": False}]
    columns += [{"key": f"run {i}", "title": name, "number": False} for i, name in enumerate(accounts)]
    rows = [
        {"key": key, **{f"run {i}": config.get(key, "") for i, config in enumerate(configs.values())}}
        for key in differing
    ]
    about = f"The {len(rows)} settings that differ between the runs."
    return {
        "id": "config-differences",
        "title": title,
        "kind": "table",
        "about": about,
        "columns": columns,
        "rows": rows,
    }


def _flat_config(account: Mapping[str, Any]) -> dict[str, str]:
    # From the account's table: the account is all that the cache keeps of a run.
    no_panel: Panel = {}
    panel = next((panel for panel in account["panels"] if panel["id"] == "config"), no_panel)
    return {str(row.get("key")): str(row.get("value")) for row in panel.get("rows", ())}


def _empty_panel(name: str, title: str, why: str) -> Panel:
    return {"id": name, "title": title, "kind": "empty", "about": why, "why": why}
