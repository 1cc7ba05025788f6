"""Distributions panel: the newest histogram of each tag, and its quantiles over the run."""

from collections.abc import Mapping, Sequence

import numpy as np

from fieldwatch.base import number as number_text
from fieldwatch.record import Metric, Series
from fieldwatch.record.sinks import StoredHistogram, stored_histograms
from fieldwatch.report.account.event_pictures import FOLDER
from fieldwatch.report.account.material import Material
from fieldwatch.report.account.series import one_series, rounded
from fieldwatch.report.page import Panel, group, lines

QUANTILES = (("minimum", 0.0), ("5 %", 0.05), ("median", 0.5), ("95 %", 0.95), ("maximum", 1.0))
_MOST_TAGS = 24
_MOST_POINTS = 200


def distributions(material: Material) -> Panel:
    """Return the distributions panel: bars of the newest histogram of each tag, and quantiles if there are several."""
    found = stored_histograms(material.folder / FOLDER)
    parts: list[Panel] = []
    for place, (tag, histograms) in enumerate(list(found.items())[:_MOST_TAGS]):
        epochs = material.epochs_like(tag)
        # Tags are raw text, and two of them may have the same slug.
        parts.append(_bars(material, histograms[-1], epochs) | {"id": f"newest-{place}"})
        if len(histograms) > 1:
            parts.append(_quantiles(material, histograms, epochs) | {"id": f"quantiles-{place}"})
    more = f", the first {_MOST_TAGS} of {len(found)}" if len(found) > _MOST_TAGS else ""
    about = f"The newest histogram of each tag, and its quantiles over the run{more}."
    why = "No histogram is in the run's TensorBoard files: step.histogram(name, values) writes one."
    return group("distributions", "Distributions", about, parts, why)


def _bars(material: Material, histogram: StoredHistogram, epochs: Mapping[int, int]) -> Panel:
    metric = material.catalogue.find(histogram.tag)
    # Only a histogram of equal values has empty bins at its ends: without them, its value can be read off.
    filled = np.flatnonzero(histogram.counts)
    first = int(filled[0])
    last = int(filled[-1])
    count = number_text(float(histogram.counts.sum()))
    when, _ = material.place_of(histogram.position, epochs)
    return {
        "title": histogram.tag,
        "kind": "histogram",
        "about": " ".join([f"{count} value{'s' * (count != '1')}, {when}.", *([metric.meaning] if metric else [])]),
        "unit": metric.unit if metric else "",
        "edges": rounded(histogram.edges[first : last + 2]),
        "counts": rounded(histogram.counts[first : last + 1]),
    }


def _quantiles(material: Material, histograms: Sequence[StoredHistogram], epochs: Mapping[int, int]) -> Panel:
    tag = histograms[0].tag
    declared = material.catalogue.find(tag)
    unit = declared.unit if declared else ""
    positions = np.array([one.position for one in histograms], np.float64)
    steps = np.array([material.place_of(one.position, epochs)[1] for one in histograms], np.float64)
    labels: dict[str, str] = {}
    for label, fraction in QUANTILES:
        values = np.array([histogram.quantile(fraction) for histogram in histograms], np.float64)
        metric = Metric(name=tag, unit=unit, meaning=f"{label} of the histogram.", axis="epoch" if epochs else "step")
        series = Series(steps=steps, seconds=steps, positions=positions, values=values)
        name = f"{tag}/{label}"
        material.series[name] = one_series(series, metric, _MOST_POINTS)
        labels[name] = label
    about = "Quantiles of each histogram, interpolated within its bins."
    return lines(f"{tag}, quantiles", list(labels), about, labels=labels)
