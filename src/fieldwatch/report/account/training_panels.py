"""Panels about the training: losses, gradients, conflicts between terms, timing."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import duration
from fieldwatch.base import number as number_text
from fieldwatch.base.json_values import as_list, is_number
from fieldwatch.health import on_steps
from fieldwatch.record import History, tags
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.series import derived, number, short_labels
from fieldwatch.report.page import Panel, facts, group, lines, table

Floats = NDArray[np.float64]
SHARES = tags.Family("Shares/")
PACE = "Pace/steps_per_second"
STALL = "Checkpoint/stall_ms"
REFUSED = "Guard/refused"
_TERMS = (
    ("Terms before their weights", tags.COMPONENT, "Unweighted value of each term; none while the term is off."),
    ("Terms times their weights", tags.WEIGHTED, "Contribution of each term to the total."),
    ("Weights", tags.WEIGHT, "Weight of each term."),
    ("Shares step by step", tags.SHARE, "Each weighted term divided by the total, where the term was recorded."),
)
_BUCKETS = 400
"""Maximum number of points of a derived series: stretches of steps over which it is averaged."""
_ROWS = 60


def losses(material: Material) -> Panel:
    """Return the losses panel: the total, its terms, and the share of each term."""
    parts: list[Panel] = []
    if tags.TOTAL in material.series:
        parts.append(lines("Total", [tags.TOTAL], "The loss that is backpropagated.", log=True))
    # Averaged over stretches: areas of single steps would flicker, and terms may be recorded at different steps.
    shares = _mean_shares(material.history)
    if shares:
        material.series.update(shares)
        labels = short_labels(shares, SHARES)
        parts.append(
            {
                "id": "shares",
                "title": "Shares of the terms",
                "kind": "stack",
                "about": "Mean share of each weighted term in the total; terms that are switched off have none.",
                "series": list(shares),
                "labels": labels,
                "of": "share of the weighted loss",
            }
        )
    for title, family, about in _TERMS:
        names = material.of_family(family)
        if names:
            parts.append(lines(title, names, about, labels=short_labels(names, family), log=family != tags.SHARE))
    why = "No loss was recorded: call step.observe(Terms(...)) in the loop."
    return group("losses", "Losses", "The total, its terms, and their shares.", parts, why)


def gradients(material: Material) -> Panel:
    """Return the gradients panel: norms by group, clipping, update ratios, refused updates, learning rates."""
    norms = [*material.of_family(tags.GRADIENT_NORM), *material.named(tags.LARGEST_GRADIENT)]
    parts: list[Panel] = []
    if norms:
        labels = short_labels(norms, tags.GRADIENT_NORM, tags.GRADIENT)
        about = "Euclidean norm of all gradients and of each watched group, before clipping."
        parts.append(lines("Norms", norms, about, labels=labels, log=True))
    parts += _clipping(material)
    ratios = material.of_family(tags.UPDATE_RATIO)
    if ratios:
        labels = short_labels(ratios, tags.UPDATE_RATIO)
        about = "Norm of a group's update divided by the norm of its parameters; typically about 0.001."
        parts.append(lines("Update ratios", ratios, about, labels=labels, log=True))
    refusals = material.of_kind("refusal")
    if refusals:
        parts.append(_refusals(refusals))
    rates = material.of_family(tags.LEARNING_RATE)
    if rates:
        labels = short_labels(rates, tags.LEARNING_RATE)
        parts.append(lines("Learning rates", rates, "Learning rate of each parameter group.", labels=labels))
    why = "No gradient norm was recorded: call run.track(name=module) and step.update(optimizer)."
    return group("gradients", "Gradients", "Gradient norms of each part of the model, and refused updates.", parts, why)


def conflicts(material: Material) -> Panel:
    """Return the conflicts panel: cosine between the terms' gradients in each group, and their shares."""
    parts: list[Panel] = []
    cosines = material.of_family(tags.COSINE)
    if cosines:
        labels = short_labels(cosines, tags.COSINE)
        about = "Cosine between two terms' gradients in a group; -1: they are opposed."
        parts.append(lines("Agreement", cosines, about, labels=labels))
    shares = material.of_family(tags.GRADIENT_SHARE)
    if shares:
        labels = short_labels(shares, tags.GRADIENT_SHARE)
        parts.append(
            lines("Shares of the gradient", shares, "Share of each term in a group's gradient.", labels=labels)
        )
    why = (
        "Gradients were not attributed to terms: call step.attribute(terms, every=200) before backward, with two "
        "terms or more."
    )
    return group("conflicts", "Conflicts", "Whether the terms' gradients oppose each other.", parts, why)


def timing(material: Material) -> Panel:
    """Return the timing panel: pace, spans of the step, checkpoint stalls."""
    history = material.history
    # Time/ also has metrics that are no durations, such as rates.
    spans = [name for name in material.of_family(tags.SPAN) if material.series[name]["unit"] == "ms"]
    parts: list[Panel] = []
    if tags.STEP_TIME in history:
        series = history[tags.STEP_TIME]
        parts.append(_pace_facts(series.values, material))
        # The rate of the mean duration: a mean of rates would favor the fast steps.
        steps, means = _bucket_means(series.steps, series.values)
        with np.errstate(divide="ignore", invalid="ignore"):
            pace = 1000 / means
        material.series[PACE] = derived(steps, pace, "Mean steps per second over each stretch.", "1/s")
        parts.append(lines("Pace", [PACE], "Steps per second over the run.", labels={PACE: "steps per second"}))
    if spans:
        labels = short_labels(spans, tags.SPAN)
        parts.append(lines("Time of a step", spans, "The step and its named spans, in ms.", labels=labels, log=True))
        rows = [_span(name, history) for name in spans]
        columns = (("span", "span", False), ("mean", "mean, ms", True), ("median", "median, ms", True))
        columns += (("share", "share of the step, %", True), ("most", "longest, ms", True), ("at", "at step", True))
        parts.append(table("Spans", columns, rows, "Time of each span of a step."))
    saves = material.of_kind("checkpoint")
    stalls = [(event["step"], event["stall_ms"]) for event in saves if is_number(event.get("stall_ms"))]
    if stalls:
        points = np.array(stalls, np.float64)
        about = "Time for which training waited for each checkpoint."
        material.series[STALL] = derived(points[:, 0], points[:, 1], about, "ms")
        parts.append(lines("Checkpoint stalls", [STALL], about, labels={STALL: "stall"}))
    why = "No times were recorded: run.steps(...) records Time/step, and step.span(name) records parts of a step."
    return group("timing", "Timing", "Speed, and where the time is spent.", parts, why)


def _mean_shares(history: History) -> dict[str, dict[str, Any]]:
    """Return each term's mean share per stretch of steps; at each step the shares of all terms sum to 1."""
    terms = tags.SHARE.parts(history.names())
    names = list(terms.values())
    if not names:
        return {}
    steps = history[tags.TOTAL].steps if tags.TOTAL in history else history[names[0]].steps
    edges = np.unique(np.linspace(0, len(steps), min(_BUCKETS, len(steps)) + 1).astype(np.intp))
    starts = steps[edges[:-1]]
    sums = np.stack([_sums(history, name, starts) for name in names])
    # A stretch in which no term is active divides 0 by 0, and its shares are unknown.
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = sums / sums.sum(axis=0)
    meaning = "Mean share of the term in the weighted loss, over one stretch of steps."
    return {SHARES.tag(term): derived(starts, values, meaning) for term, values in zip(terms, whole, strict=True)}


def _sums(history: History, name: str, starts: Floats) -> Floats:
    """Return the sum of the absolute finite values of a share in each stretch: stacked areas cannot be negative."""
    series = history[name]
    # Clipped, because a share may have been recorded before the first total.
    place = np.clip(np.searchsorted(starts, series.steps, side="right") - 1, 0, None)
    values = np.where(np.isfinite(series.values), np.abs(series.values), 0.0)
    return np.bincount(place, weights=values, minlength=len(starts)).astype(np.float64)


def _bucket_means(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    """Return the first step of each stretch, and the mean of its finite values."""
    edges = np.unique(np.linspace(0, len(steps), min(_BUCKETS, len(steps)) + 1).astype(np.intp))
    finite = np.where(np.isfinite(values), values, 0.0)
    counts = np.maximum(np.add.reduceat(np.isfinite(values).astype(np.float64), edges[:-1]), 1.0)
    return steps[edges[:-1]], np.add.reduceat(finite, edges[:-1]) / counts


def _pace_facts(values: Floats, material: Material) -> Panel:
    known = values[np.isfinite(values)]
    if not len(known):
        return facts("Step time", [("step time", "not finite")], "Duration of a step.")
    # The median, since the first steps and evaluations take many times as long.
    median, late, longest = np.percentile(known, [50, 95, 100]).tolist()
    status = material.status
    remaining = (status.planned - 1 - status.last) if status.planned and status.last is not None else 0
    # The speed of the last steps predicts the rest better than the mean: models grow, and so do their steps.
    recent = float(known[-200:].mean())
    pairs = [
        ("median step", f"{number_text(median)} ms"),
        ("95 % of the steps within", f"{number_text(late)} ms"),
        ("longest step", f"{number_text(longest)} ms"),
        ("steps per second, last 200 steps", number_text(1000 / recent) if recent > 0 else ""),
        ("remaining time at that pace", duration(remaining * recent / 1000) if status.state.word == "running" else ""),
    ]
    return facts("Step time", pairs, "Duration of a step.")


def _span(name: str, history: History) -> dict[str, Any]:
    series = history[name]
    known = np.where(np.isfinite(series.values), series.values, 0.0)
    step_times = history[tags.STEP_TIME].values if tags.STEP_TIME in history else known
    total = float(np.where(np.isfinite(step_times), step_times, 0.0).sum())
    place = int(np.argmax(known))
    return {
        "span": tags.SPAN.part(name),
        "mean": number(float(known.mean())),
        "median": number(float(np.median(known))),
        "share": number(100 * float(known.sum()) / total) if total > 0 else None,
        "most": number(float(known[place])),
        "at": int(series.steps[place]),
    }


def _clipping(material: Material) -> Iterator[Panel]:
    """Yield the factors of clipping as curves, and a table of how often and how hard it acted."""
    total = [tags.CLIP_SCALE] if tags.CLIP_SCALE in material.series else []
    names = [*total, *material.of_family(tags.GROUP_CLIP_SCALE)]
    if not names:
        return
    labels = short_labels(names, tags.GROUP_CLIP_SCALE) | {tags.CLIP_SCALE: "all gradients"}
    about = "Factor by which clipping scaled the gradients: 1 means not clipped."
    yield lines("Clipping", names, about, labels=labels, log=True)
    columns = (("gradients", "gradients", False), ("steps", "steps", True), ("share", "clipped, %", True))
    columns += (
        ("median", "median factor when clipped", True),
        ("least", "smallest factor", True),
        ("at", "at step", True),
    )
    rows = [{"gradients": labels[name]} | _clipped(name, material.history) for name in names]
    yield table(
        "Clipped steps", columns, rows, "Steps at which clipping scaled the gradients, without refused updates."
    )


def _clipped(name: str, history: History) -> dict[str, Any]:
    series = history[name]
    kept = np.isfinite(series.values)
    # A refused update applies no gradient, and the factor of an infinite norm is 0.
    if REFUSED in history:
        kept &= ~(on_steps(history[REFUSED], series.steps) > 0)
    values = series.values[kept]
    factors = values[values < 1]
    if not len(factors):
        return {"steps": len(values), "share": 0.0 if len(values) else None}
    place = int(np.argmin(values))
    return {
        "steps": len(values),
        "share": number(100 * len(factors) / len(values)),
        "median": number(float(np.median(factors))),
        "least": number(float(values[place])),
        "at": int(series.steps[kept][place]),
    }


def _refusals(refusals: Sequence[Mapping[str, Any]]) -> Panel:
    rows = [
        {"step": event["step"]}
        | {key: ", ".join(map(str, as_list(event.get(key)))) for key in ("terms", "groups", "samples")}
        for event in refusals[:_ROWS]
    ]
    columns = (("step", "step", True), ("terms", "terms", False), ("groups", "groups", False))
    columns += (("samples", "samples", False),)
    more = f", the first {_ROWS} of them" if len(refusals) > _ROWS else ""
    about = f"{len(refusals):,} updates were refused because a value was not finite{more}."
    return table("Refused updates", columns, rows, about)
