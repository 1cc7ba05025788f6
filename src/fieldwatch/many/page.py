"""The comparison as one page that needs nothing else: no network, no script, no other file."""

from collections.abc import Iterable, Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import PurePosixPath
from typing import Any, Final
from urllib.parse import quote

_POLICY: Final = "default-src 'none'; style-src 'unsafe-inline'"
_GOOD = frozenset({"healthy", "warnings"})
_BAD = frozenset({"crashed", "refused", "diverged"})
_WIDTH = 160
_HEIGHT = 36

Summary = Mapping[str, Any]


def scenes_page(scenes: Sequence[Summary]) -> str:
    """Return the page.

    Args:
        scenes: one summary each, as `scene_summary` makes them; nothing in them is trusted to be harmless.
    """
    style = files("fieldwatch.many").joinpath("page.css").read_text(encoding="utf-8")
    parts = (_counts(scenes), _overview(scenes), *_quality(scenes), "<h2>Scene by scene</h2>", *map(_details, scenes))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        f"<title>{len(scenes)} scenes</title><style>{style}</style></head><body><main><h1>{len(scenes)} scenes</h1>"
        "<p class=quiet>Made by <code>fieldwatch train-many</code>; links lead into the folder that holds this page."
        f"</p>{''.join(parts)}</main></body></html>\n"
    )


def _counts(scenes: Sequence[Summary]) -> str:
    states = sorted({scene["state"] for scene in scenes})
    tiles = [
        f"<li class={_class(state)}><b>{sum(scene['state'] == state for scene in scenes)}</b> {escape(state)}</li>"
        for state in states
    ]
    again = sum(max(len(scene["tries"]) - 1, 0) for scene in scenes)
    wall = sum(scene["wall_seconds"] for scene in scenes)
    return (
        f"<ul class=tiles>{''.join(tiles)}<li><b>{again}</b> tried again</li><li><b>{_time(wall)}</b> in all</li></ul>"
    )


def _overview(scenes: Sequence[Summary]) -> str:
    heads = ("scene", "pipeline", "state", "tries", "went on at step", "steps", "time", "loss", "findings", "folder")
    return _table(heads, [_overview_row(scene) for scene in scenes])


def _overview_row(scene: Summary) -> list[str]:
    name = scene["scene"]
    total = scene["total_steps"]
    steps = "-" if scene["steps"] is None else f"{scene['steps']:,}" + (f" / {total:,}" if total else "")
    return [
        f'<a href="#{escape(quote(name))}">{escape(name)}</a>',
        escape(scene["pipeline"]),
        f"<span class={_class(scene['state'])}>{escape(scene['state'])}</span>"
        + (" <small>earlier</small>" if scene["finished_earlier"] else ""),
        str(len(scene["tries"])),
        escape(", ".join(f"{step:,}" for step in scene["resumed_from"]) or "-"),
        steps,
        _time(scene["wall_seconds"]),
        _curve(scene["curve"]),
        str(len(scene["findings"])),
        f'<a href="{escape(quote(PurePosixPath(scene["run"]).name))}/">open</a>',
    ]


def _quality(scenes: Sequence[Summary]) -> Iterable[str]:
    """A table of the last metrics per pipeline, for only within one are they the same quantities."""
    for pipeline in sorted({scene["pipeline"] for scene in scenes}):
        chosen = [scene for scene in scenes if scene["pipeline"] == pipeline and scene["metrics"]]
        names = sorted({name for scene in chosen for name in scene["metrics"]})
        if not names:
            continue
        rows = [[escape(name), *(_number(scene["metrics"].get(name)) for scene in chosen)] for name in names]
        yield f"<h2>Quality: {escape(pipeline)}</h2>{_table(['', *(escape(s['scene']) for s in chosen)], rows)}"


def _details(scene: Summary) -> str:
    name = scene["scene"]
    tries = [_try_row(attempt) for attempt in scene["tries"]]
    findings = "".join(_finding(finding) for finding in scene["findings"])
    damage = f"<p class=bad>{escape(scene['damage'])}</p>" if scene["damage"] else ""
    console = f'<a href="console/{escape(quote(name))}.txt">what it printed</a>'
    return (
        f'<section id="{escape(quote(name))}"><h3>{escape(name)}</h3>'
        f"<p><code>{escape(scene['command'])}</code> &middot; {console}</p>{damage}"
        f"{_table(('try', 'came to', 'why', 'from step', 'to step', 'time'), tries)}{findings}</section>"
    )


def _try_row(attempt: Mapping[str, Any]) -> list[str]:
    steps = (_step(attempt["first"]), _step(attempt["reached"]))
    return [
        str(attempt["number"]),
        escape(attempt["state"]),
        escape(attempt["cause"]),
        *steps,
        _time(attempt["seconds"]),
    ]


def _finding(finding: Mapping[str, Any]) -> str:
    about = f" ({finding['subject']})" if finding.get("subject") else ""
    head = f"{finding['severity']}: {finding['rule']}{about} at step {finding['step']}"
    return (
        f"<div class=finding><b>{escape(head)}</b><br>{escape(str(finding['message']))}<br>"
        f"&rarr; {escape(str(finding['remedy']))}</div>"
    )


def _curve(points: Sequence[Sequence[float]]) -> str:
    """The loss over the steps, from its least to its greatest value."""
    if len(points) < 2:
        return "-"
    left = points[0][0]
    right = points[-1][0]
    values = [value for _, value in points]
    low = min(values)
    high = max(values)
    across = _WIDTH / ((right - left) or 1)
    up = (_HEIGHT - 4) / ((high - low) or 1)
    path = " ".join(f"{(step - left) * across:.1f},{_HEIGHT - 2 - (value - low) * up:.1f}" for step, value in points)
    label = f"loss from {values[0]:.4g} to {values[-1]:.4g}"
    return (
        f'<svg width={_WIDTH} height={_HEIGHT} viewBox="0 0 {_WIDTH} {_HEIGHT}" role=img aria-label="{label}">'
        f'<title>{label}</title><polyline points="{path}"/></svg>'
    )


def _table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    head = "".join(f"<th>{cell}</th>" for cell in heads)
    body = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in row)}</tr>" for row in rows)
    return f"<div class=wide><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def _class(state: str) -> str:
    return "good" if state in _GOOD else "bad" if state in _BAD else "fair"


def _number(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.5g}" if isinstance(value, int | float) else escape(str(value))


def _step(step: int | None) -> str:
    return "-" if step is None else f"{step:,}"


def _time(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
