"""Panels about the training itself: losses, gradients, conflicts between terms, time."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fieldwatch.base import duration
from fieldwatch.base import number as number_text
from fieldwatch.record import History, tags
from fieldwatch.report.account.json_values import as_list, is_number
from fieldwatch.report.account.material import Material, Panel, facts, group, lines, table
from fieldwatch.report.account.series import derived, number, short_labels

Floats = NDArray[np.float64]
SHARES = tags.Family("Shares/")
PACE = "Pace/steps_per_second"
STALL = "Checkpoint/stall_ms"
_TERMS = (
    ("Terms before their weights", tags.COMPONENT, "Value of each term; absent while it is switched off."),
    ("Terms times their weights", tags.WEIGHTED, "What each term adds to the total."),
    ("Weights", tags.WEIGHT, "What each term is multiplied by."),
    ("Shares step by step", tags.SHARE, "Each weighted term divided by the total, at its own steps."),
)
_BUCKETS = 400
_ROWS = 60


def losses(material: Material) -> Panel:
    """Return the loss, its terms, and what part of it each term is."""
    parts: list[Panel] = []
    if tags.TOTAL in material.series:
        parts.append(lines("Total", [tags.TOTAL], "What backward starts from.", log=True))
    shares = _mean_shares(material.history)
    if shares:
        material.series.update(shares)
        labels = short_labels(shares, SHARES)
        parts.append(
            {
                "id": "shares",
                "title": "Shares of the terms",
                "kind": "stack",
                "about": "Mean part of each weighted term in the total; a term that is switched off has none.",
                "series": list(shares),
                "labels": labels,
                "of": "share of the weighted loss",
            }
        )
    for title, family, about in _TERMS:
        names = material.of_family(family)
        if names:
            parts.append(lines(title, names, about, labels=short_labels(names, family), log=family != tags.SHARE))
    why = "Nothing was recorded as a loss: call step.observe(Terms(...)) in the loop."
    return group("losses", "Losses", "The total, its terms, and which of them it is made of.", parts, why)


def gradients(material: Material) -> Panel:
    """Return norms by group, sizes of updates, and the updates that were refused."""
    norms = [*material.of_family(tags.GRADIENT_NORM), *material.named(tags.LARGEST_GRADIENT)]
    parts: list[Panel] = []
    if norms:
        labels = short_labels(norms, tags.GRADIENT_NORM, tags.GRADIENT)
        about = "Euclidean norm of all gradients and of each watched group, before clipping."
        parts.append(lines("Norms", norms, about, labels=labels, log=True))
    ratios = material.of_family(tags.UPDATE_RATIO)
    if ratios:
        labels = short_labels(ratios, tags.UPDATE_RATIO)
        about = "Size of a group's update against its parameters; about 0.001 is usual."
        parts.append(lines("Update ratios", ratios, about, labels=labels, log=True))
    refusals = material.of_kind("refusal")
    if refusals:
        parts.append(_refusals(refusals))
    rates = material.of_family(tags.LEARNING_RATE)
    if rates:
        labels = short_labels(rates, tags.LEARNING_RATE)
        parts.append(lines("Learning rates", rates, "Of each parameter group.", labels=labels))
    why = "No gradient norm was recorded: call run.track(name=module) and step.update(optimizer)."
    return group(
        "gradients", "Gradients", "How hard each part of the model is pulled, and what was refused.", parts, why
    )


def conflicts(material: Material) -> Panel:
    """Return how the terms' gradients agree in each group."""
    parts: list[Panel] = []
    cosines = material.of_family(tags.COSINE)
    if cosines:
        labels = short_labels(cosines, tags.COSINE)
        about = "Cosine between two terms' gradients in a group; -1: they pull against each other."
        parts.append(lines("Agreement", cosines, about, labels=labels))
    shares = material.of_family(tags.GRADIENT_SHARE)
    if shares:
        labels = short_labels(shares, tags.GRADIENT_SHARE)
        parts.append(lines("Shares of the pull", shares, "Each term's part of the pull on a group.", labels=labels))
    why = (
        "Gradients were not taken apart by term: call step.attribute(terms, every=200) before backward, with two "
        "terms or more."
    )
    return group(
        "conflicts", "Conflicts", "Whether terms pull the same parameters in different directions.", parts, why
    )


def timing(material: Material) -> Panel:
    """Return where the time goes: spans of the step, pace, stalls of checkpoints."""
    history = material.history
    spans = [name for name in material.of_family(tags.SPAN) if material.series[name]["unit"] == "ms"]
    parts: list[Panel] = []
    if tags.STEP_TIME in history:
        series = history[tags.STEP_TIME]
        parts.append(_pace_facts(series.values, material))
        steps, means = _bucket_means(series.steps, series.values)
        with np.errstate(divide="ignore", invalid="ignore"):
            pace = 1000 / means
        material.series[PACE] = derived(steps, pace, "Steps per second, in the mean of each stretch.", "1/s")
        parts.append(lines("Pace", [PACE], "Steps per second over the run.", labels={PACE: "steps per second"}))
    if spans:
        labels = short_labels(spans, tags.SPAN)
        parts.append(lines("Time of a step", spans, "The step and its named spans, in ms.", labels=labels, log=True))
        rows = [_span(name, history) for name in spans]
        columns = (("span", "span", False), ("mean", "mean, ms", True), ("median", "median, ms", True))
        columns += (("share", "share of the step, %", True), ("most", "longest, ms", True), ("at", "at step", True))
        parts.append(table("Spans", columns, rows, "Where a step's time goes."))
    stalls = [(e["step"], e["stall_ms"]) for e in material.of_kind("checkpoint") if is_number(e.get("stall_ms"))]
    if stalls:
        points = np.array(stalls, np.float64)
        material.series[STALL] = derived(points[:, 0], points[:, 1], "How long training waited for a checkpoint.", "ms")
        parts.append(lines("Checkpoint stalls", [STALL], "How long training waited for each.", labels={STALL: "stall"}))
    why = "No times were recorded: run.steps(...) records Time/step, and step.span(name) the parts of a step."
    return group("timing", "Timing", "How fast it went, and where the time goes.", parts, why)


def _mean_shares(history: History) -> dict[str, dict[str, Any]]:
    """Return each term's mean share per stretch of steps: all on the same steps, adding up to 1."""
    terms = tags.SHARE.parts(history.names())
    names = list(terms.values())
    if not names:
        return {}
    steps = history[tags.TOTAL].steps if tags.TOTAL in history else history[names[0]].steps
    edges = np.unique(np.linspace(0, len(steps), min(_BUCKETS, len(steps)) + 1).astype(np.intp))
    starts = steps[edges[:-1]]
    sums = np.stack([_sums(history, name, starts) for name in names])
    with np.errstate(divide="ignore", invalid="ignore"):
        whole = sums / sums.sum(axis=0)
    meaning = "Mean share of the term in the weighted loss, over one stretch of steps."
    return {SHARES.tag(term): derived(starts, values, meaning) for term, values in zip(terms, whole, strict=True)}


def _sums(history: History, name: str, starts: Floats) -> Floats:
    """Return the sum of a share's finite values in each stretch, without their sign: areas have none."""
    series = history[name]
    place = np.clip(np.searchsorted(starts, series.steps, side="right") - 1, 0, None)
    values = np.where(np.isfinite(series.values), np.abs(series.values), 0.0)
    return np.bincount(place, weights=values, minlength=len(starts)).astype(np.float64)


def _bucket_means(steps: Floats, values: Floats) -> tuple[Floats, Floats]:
    edges = np.unique(np.linspace(0, len(steps), min(_BUCKETS, len(steps)) + 1).astype(np.intp))
    finite = np.where(np.isfinite(values), values, 0.0)
    counts = np.maximum(np.add.reduceat(np.isfinite(values).astype(np.float64), edges[:-1]), 1.0)
    return steps[edges[:-1]], np.add.reduceat(finite, edges[:-1]) / counts


def _pace_facts(values: Floats, material: Material) -> Panel:
    known = values[np.isfinite(values)]
    if not len(known):
        return facts("Step time", [("step time", "not finite")], "How long a step takes.")
    median, late, most = np.percentile(known, [50, 95, 100]).tolist()
    status = material.status
    left = (status.planned - 1 - status.last) if status.planned and status.last is not None else 0
    recent = float(known[-200:].mean())
    pairs = [
        ("median step", f"{number_text(median)} ms"),
        ("95 % of the steps within", f"{number_text(late)} ms"),
        ("longest step", f"{number_text(most)} ms"),
        ("steps per second, lately", number_text(1000 / recent) if recent > 0 else ""),
        ("time to the end at that pace", duration(left * recent / 1000) if status.state.word == "running" else ""),
    ]
    return facts("Step time", pairs, "How long a step takes.")


def _span(name: str, history: History) -> dict[str, Any]:
    series = history[name]
    known = np.where(np.isfinite(series.values), series.values, 0.0)
    whole = history[tags.STEP_TIME].values if tags.STEP_TIME in history else known
    total = float(np.where(np.isfinite(whole), whole, 0.0).sum())
    place = int(np.argmax(known))
    return {
        "span": tags.SPAN.part(name),
        "mean": number(float(known.mean())),
        "median": number(float(np.median(known))),
        "share": number(100 * float(known.sum()) / total) if total > 0 else None,
        "most": number(float(known[place])),
        "at": int(series.steps[place]),
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
    about = f"{len(refusals):,} updates were refused because something was not finite{more}."
    return table("Refused updates", columns, rows, about)
