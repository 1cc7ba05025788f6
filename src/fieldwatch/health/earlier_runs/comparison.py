"""Whether an earlier run was better, by how much, and what differs between the two."""

import math
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fieldwatch.health.earlier_runs.candidates import comparable_runs
from fieldwatch.health.outcomes import (
    ACCURACIES,
    FRACTIONS,
    NATURAL,
    Direction,
    held_out_metrics,
    late,
    loss_ends,
    name_words,
    whole,
)
from fieldwatch.health.window import is_signed
from fieldwatch.record import History, Manifest, Series, read_history, read_manifest, tags
from fieldwatch.record.config import config_differences
from fieldwatch.record.source_code import changed_lines, read_source_code

EARLIER_RUN = "earlier_run"
"""Kind of the event that `better_earlier_run` describes."""
_DECIBELS = frozenset(("psnr", "snr", "sdr", "sisdr", "sisnr"))
"""Words in the names of metrics in dB: 3 dB less are twice the squared error."""
_BOUNDED = FRACTIONS | ACCURACIES | set(NATURAL) | {"ssim"}
"""Words in the names of metrics that are 1 (or 100 %) at best: what is missing to that is an error."""
_LEAST_ERROR = 0.02
"""Errors below it, as a fraction of the first evaluation, are not told apart."""
_LEAST_MISSED = 0.05
"""The same for fractions, which are measured on few samples."""
_LEAST_GAIN = 0.2
"""Gain, as a fraction of the whole or of the first evaluation, below which its parts mean nothing."""
_LEAST_DECIBELS = 2.0
"""The same for metrics in dB."""
_LEAST_LOSS = 1e-2
"""The same for training losses, as a fraction of the first one: the last decimals depend on the seed."""
_MANY = 8
"""Number of recordings from which on the last one alone is no result, as of the returns of a policy."""
_LEAST_SIZE = 1.25
"""Size of a gap that counts: repetitions with other seeds differ by less."""
_LEAST_LOSSES = 50
"""Least number of recorded losses of which the fall is compared."""
_MOST_ROWS = 1 << 16
"""Number of rows that are kept of a run; of a longer one, only the evaluations are compared."""
_MOST_NAMED = 6
"""Largest number of settings and of changed lines that are named."""
_MOST_CHANGES = 40
"""Number of changed places in the code from which on they are only counted."""
_LONGEST = 160
"""Longest line of code that is quoted, characters."""
_SHORT = 80
"""Length from which on a value is no longer short, characters."""


@dataclass(frozen=True, kw_only=True)
class _Gap:
    """How far a result is behind that of an earlier run.

    Attributes:
        metric: name of the metric.
        here: its value at the end of the run.
        there: its value in the earlier run, at the same step or at its end.
        times: error of the run as a multiple of that of the earlier one.
        share: part of what the earlier run gained since its first evaluation that this one lacks; 0 if unknown.
    """

    metric: str
    here: float
    there: float
    times: float
    share: float

    @property
    def size(self) -> float:
        """How far it is behind, as a multiple of the error: half of the gain counts as twice the error."""
        return max(self.times, 1 + 2 * self.share)


def better_earlier_run(folder: Path) -> dict[str, Any] | None:
    """Return the fields of the event about the earlier run whose result is furthest ahead of that of a finished run.

    Args:
        folder: run folder.

    Returns:
        ``run`` (name of the earlier run's folder), ``command`` (shows both), ``last`` (last step of the earlier run),
        ``metric``, ``here``, ``there``, ``times`` (error as a multiple of the earlier one), ``share`` (part of the
        earlier gain that is missing), ``behind`` and ``of`` (number of results that are worse, and of all that both
        have), ``same_until`` (step up to which the losses are equal to the bit; -1 if not from the first one on),
        ``settings`` (name, value there, value here), ``further_settings`` (number of those that are not listed),
        ``code`` (file, line, text there, text here), ``changed_places`` (number of them; None if the source of either
        run is unknown), and ``versions`` (package, version there, version here).
        None if no comparable run has a clearly better result.
    """
    others = comparable_runs(folder)
    if not others:
        return None
    history = read_history(folder, _MOST_ROWS)
    best: tuple[_Gap, Path, dict[str, Any]] | None = None
    for other in others:
        earlier = read_history(other, _MOST_ROWS)
        # What is wrong with a run may be what makes its results look good, such as held-out data that it has seen.
        if any(event.get("severity") != "note" for event in earlier.events("finding")):
            continue
        gaps = list(_gaps(history, earlier))
        behind = [gap for gap in gaps if gap.size > _LEAST_SIZE]
        # If most results are as good as before, the others are a trade.
        if not behind or 2 * len(behind) <= len(gaps):
            continue
        gap = max(behind, key=lambda gap: gap.size)
        if best is None or gap.size > best[0].size:
            facts = {"last": earlier.step, "behind": len(behind), "of": len(gaps)}
            best = gap, other, facts | {"same_until": _same_until(history, earlier)}
    if best is None:
        return None
    gap, other, facts = best
    command = shlex.join(["fieldwatch", "compare", str(other), str(folder.absolute())])
    return {"run": other.name, "command": command, **asdict(gap), **facts, **_differences(other, folder)}


def _gaps(history: History, earlier: History) -> Iterator[_Gap]:
    """Yield how far each result that both runs have is behind the earlier one; the training loss if they have none."""
    directions = held_out_metrics(history)
    shared = [name for name in held_out_metrics(earlier) if name in directions]
    for name in shared:
        then = _until(earlier[name], history.step)
        if len(then):
            yield _gap(name, directions[name], history[name], then)
    if not shared and tags.TOTAL in history and tags.TOTAL in earlier:
        yield from _loss_gap(history[tags.TOTAL], _until(earlier[tags.TOTAL], history.step))


def _until(series: Series, step: int) -> Series:
    """Return the recordings of an earlier run up to the last step of this one: training on may be what it lacks."""
    count = int(np.searchsorted(series.steps, step, side="right"))
    return series[:count]


def _gap(name: str, better: Direction, series: Series, then: Series) -> _Gap:
    """Compare the last values of a metric."""
    here = _final(series)
    there = _final(then)
    times = 1.0
    share = 0.0
    sign = 1.0 if better == "higher" else -1.0
    behind = sign * (there - here)
    # NaN is not behind: another rule reports it.
    if behind > 0 and math.isfinite(behind):
        first = float(then.values[0])
        gained = sign * (there - first)
        times, least = _scale(name, better, here, there, then)
        # Of a first evaluation that was nearly as good as the last, nothing can be lacking.
        share = min(behind / gained, 2.0) if gained > least else 0.0
    return _Gap(metric=name, here=here, there=there, times=times, share=share)


def _final(series: Series) -> float:
    """Return the last value; of many recordings the median of the last ones, because single ones vary."""
    return late(series) if len(series) >= _MANY else float(series.values[-1])


def _scale(name: str, better: Direction, here: float, there: float, then: Series) -> tuple[float, float]:
    """Return an error as a multiple of that of the earlier run, and the gain of a metric from which its parts count.

    The multiple is 1 if a metric has no best value.
    """
    words = name_words(name)
    first = float(then.values[0])
    if better == "higher" and words & _DECIBELS:
        # The ratio of the squared errors, whatever the peak is.
        return 10 ** ((there - here) / 10), _LEAST_DECIBELS
    if better == "higher" and words & _BOUNDED and float(np.nanmin(then.values)) >= 0:
        full = whole(then.values)
        return max((full - here) / max(full - there, _LEAST_MISSED * full), 1.0), _LEAST_GAIN * full
    if better == "lower" and not is_signed(then.values) and here >= 0:
        return max(here / max(there, _LEAST_ERROR * first, 1e-30), 1.0), _LEAST_GAIN * first
    return 1.0, _LEAST_GAIN * abs(first)


def _loss_gap(loss: Series, then: Series) -> Iterator[_Gap]:
    """Compare how far two training losses fell: their size may be that of another weight or reduction."""
    if min(len(loss), len(then)) < _LEAST_LOSSES or max(len(loss), len(then)) >= _MOST_ROWS:
        return
    if is_signed(loss.values) or is_signed(then.values):
        return
    began, ended = loss_ends(loss)
    began_then, ended_then = loss_ends(then)
    if not (began > 0 and began_then > 0 and math.isfinite(ended) and math.isfinite(ended_then)):
        return
    left = ended / began
    left_then = ended_then / began_then
    share = (left - left_then) / (1 - left_then) if left > left_then and left_then < 1 else 0.0
    times = max(left / max(left_then, _LEAST_LOSS), 1.0)
    yield _Gap(metric=tags.TOTAL, here=ended, there=ended_then, times=times, share=min(share, 2.0))


def _same_until(history: History, earlier: History) -> int:
    """Return the last step up to which both runs have the same losses to the bit; -1 if they differ at the first."""
    if tags.TOTAL not in history or tags.TOTAL not in earlier:
        return -1
    here = history[tags.TOTAL]
    there = earlier[tags.TOTAL]
    # Of very long runs, the first losses are not at hand.
    if here.beginning is not None or there.beginning is not None:
        return -1
    count = min(len(here), len(there))
    same = (here.steps[:count] == there.steps[:count]) & (here.values[:count] == there.values[:count])
    length = count if same.all() else int(np.argmin(same))
    return int(here.steps[length - 1]) if length else -1


def _differences(other: Path, folder: Path) -> dict[str, Any]:
    """Return what differs between two runs besides their results."""
    earlier = read_manifest(other)
    manifest = read_manifest(folder)
    settings = _settings(earlier, manifest)
    source = read_source_code(folder)
    earlier_source = read_source_code(other)
    changes = None if source is None or earlier_source is None else changed_lines(earlier_source, source)
    named = changes[:_MOST_NAMED] if changes is not None and len(changes) <= _MOST_CHANGES else []
    versions = config_differences(earlier.versions, manifest.versions)
    return {
        "settings": settings[:_MOST_NAMED],
        "further_settings": len(settings[_MOST_NAMED:]),
        "code": [[each.file, each.line, _quoted(each.was), _quoted(each.now)] for each in named],
        "changed_places": None if changes is None else len(changes),
        "versions": [[name, old, new] for name, (old, new) in versions.items() if name != "platform"],
    }


def _settings(earlier: Manifest, manifest: Manifest) -> list[list[Any]]:
    """Return the settings that differ: those of the config, and what else is recorded about the data."""
    prefix = "--" if "pipeline" in manifest.about else ""
    changed = [
        [prefix + (name.rpartition(".")[2].replace("_", "-") if prefix else name), old, new]
        for name, (old, new) in config_differences(earlier.config, manifest.config).items()
    ]
    about = config_differences(_short(earlier.about), _short(manifest.about))
    changed += [[name.replace("_", " "), old, new] for name, (old, new) in about.items()]
    # The seed differs in most repetitions: it is named, but after all others.
    return sorted(changed, key=lambda each: "seed" in str(each[0]))


def _short(about: Mapping[str, Any]) -> dict[str, Any]:
    """Return the entries about a run that are short values, such as the number of frames or a digest of the data."""
    short = (str, int, float)
    return {name: value for name, value in about.items() if isinstance(value, short) and len(str(value)) < _SHORT}


def _quoted(lines: tuple[str, ...]) -> str:
    text = " ⏎ ".join(lines)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"
