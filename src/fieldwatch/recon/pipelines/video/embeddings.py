"""Evaluation of the CLIP head: similarity, diversity and temporal change against baselines, and a map of both sets.

Predictions and targets are first normalized. Patches of one video resemble each other, so a high cosine alone proves
nothing: compare it with that of the mean embedding and of the neighboring frame.
"""

import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.files import write_file
from fieldwatch.recon.pipelines.video.split import Label

LEAST_GAIN = 1e-3
"""Minimum cosine by which predictions have to exceed the mean embedding."""
MOST_PAIRED = 1000
"""Maximum number of embeddings, evenly spaced over the clip, for mean pairwise distances."""


@torch.no_grad()
def verify_embeddings(
    predicted: Float[Tensor, "frames patches dim"],
    targets: Float[Tensor, "_ _ _"],
    splits: Sequence[Label],
    *,
    seed: int = 0,
) -> dict[str, Any]:
    """Return statistics, baselines, points and a verdict as JSON values.

    Points are those of the original scripts: a mean cosine above .9 / .7 / .5 gives 3 / 2 / 1; a variance of the
    predictions between .8 and 1.2 of the targets' gives 2, above .5 gives 1; temporal steps with a standard deviation
    above .01 give 1; a variance of val predictions above .8 / .5 of the train predictions' gives 2 / 1. Without val
    frames the last two points do not apply. The verdict is "good" from 80 % of the points, "fair" from 60 %, else
    "poor". Regardless of the points it is "no better than the mean embedding" (overall, or on val frames) if the mean
    cosine does not exceed that of the mean train embedding of each grid position; `gain` is the difference.

    Args:
        predicted: embedding predicted by the model for every patch of every frame.
        targets: embedding of the teacher, of the same shape.
        splits: "train", "val" or "unused" per frame; "overall" includes all three.
        seed: seed of the random and shuffled baselines.

    Raises:
        ValueError: shapes differ, there are no train frames, or an embedding is zero or not finite.
    """
    predicted = _unit(predicted, "predicted")
    targets = _unit(targets, "target")
    if predicted.shape != targets.shape or len(splits) != len(targets):
        shapes = f"{tuple(predicted.shape)} predicted, {tuple(targets.shape)} targets, {len(splits)} splits"
        raise ValueError(f"expected predictions and targets of equal shape and one split per frame, got {shapes}")
    sets = _sets(splits)
    if not bool(sets["train"].any()):
        raise ValueError("the report needs at least one train frame, got none: check the split")
    # Both are unit vectors, so the product is the cosine.
    cosine = (predicted * targets).sum(-1)
    report: dict[str, Any] = {
        "frames": {name: int(members.sum()) for name, members in sets.items()},
        "cosine": {name: _statistics(cosine[members]) for name, members in sets.items()},
        "baselines": _baselines(targets, sets, seed),
        "diversity": _diversity(predicted, targets),
        "temporal": {"predicted": _temporal(predicted), "target": _temporal(targets)},
        "train_val": _train_val(predicted, sets),
    }
    # The mean per position is a stronger baseline than the overall mean.
    reference = report["baselines"]["mean_embedding_of_the_place"]
    means = {name: report["cosine"][name]["mean"] for name in sets}
    report["gain"] = {name: None if mean is None else mean - reference[name] for name, mean in means.items()}
    report["score"] = _score(report)
    report["verdict"] = _verdict(report)
    return report


@dataclass(frozen=True, kw_only=True)
class EmbeddingMap:
    """Predictions and targets projected to the plane of their largest common variance.

    Attributes:
        predicted: coordinates of the predictions.
        targets: coordinates of the targets, on the same axes.
        explained: fraction of the common variance explained by each axis.
    """

    predicted: Float[Tensor, "frames patches 2"]
    targets: Float[Tensor, "frames patches 2"]
    explained: tuple[float, float]


@torch.no_grad()
def fit_map(
    predicted: Float[Tensor, "frames patches dim"], targets: Float[Tensor, "frames patches dim"]
) -> EmbeddingMap:
    """Project targets and predictions, both normalized, to their common principal components."""
    both = torch.stack([_unit(predicted, "predicted"), _unit(targets, "target")]).double()
    centered = both.flatten(0, 2) - both.flatten(0, 2).mean(0)
    _, values, directions = torch.linalg.svd(centered, full_matrices=False)
    axes = directions[:2]
    # A singular vector's sign is arbitrary: make its largest entry positive, so that maps of a clip are comparable.
    strongest = axes.gather(1, axes.abs().argmax(dim=1, keepdim=True))
    plane = (centered @ (axes * strongest.sign()).T).reshape(*both.shape[:3], 2).float()
    shares = (values**2 / (values**2).sum().clamp(min=1e-30)).tolist()
    return EmbeddingMap(predicted=plane[0], targets=plane[1], explained=(shares[0], shares[1]))


def draw_map(fitted: EmbeddingMap, splits: Sequence[Label], path: Path, *, notes: Sequence[str] = ()) -> None:
    """Write the map as a PNG: rings are targets, dots predictions, lines connect the two of one patch, colors are sets.

    Args:
        fitted: coordinates of the map.
        splits: "train", "val" or "unused" per frame.
        path: path of the PNG.
        notes: lines of text for the panel on the right.
    """
    canvas = _Canvas(fitted)
    # Later sets are drawn on top: held-out frames matter most.
    for name in ("unused", "train", "val"):
        for frame in (i for i, split in enumerate(splits) if split == name):
            canvas.pairs(fitted.targets[frame], fitted.predicted[frame], name)
    canvas.axes(fitted.explained)
    canvas.panel([name for name in ("train", "val", "unused") if name in splits], notes)
    canvas.save(path)


def map_notes(report: Mapping[str, Any]) -> list[str]:
    """Return notes for `draw_map` from a report of `verify_embeddings`."""
    baseline = report["baselines"]["mean_embedding_of_the_place"]
    notes = [
        f"mean cosine, {name}: {report['cosine'][name]['mean']:.3f} (mean embedding per position: {baseline[name]:.3f})"
        for name in ("train", "val")
        if report["cosine"][name]["mean"] is not None
    ]
    ratio = report["diversity"]["variance_ratio"]
    score = report["score"]
    spread = "none" if ratio is None else f"{ratio:.2f}"
    return [
        *notes,
        f"variance, prediction / target: {spread}",
        f"{score['total']} of {score['of']} points: {report['verdict']}",
    ]


def _unit(embeddings: Float[Tensor, "frames patches dim"], name: str) -> Float[Tensor, "frames patches dim"]:
    embeddings = embeddings.detach().float().cpu()
    # A zero vector has no direction, so its cosine would be undefined.
    norms = embeddings.norm(dim=-1, keepdim=True)
    sound = torch.isfinite(norms) & (norms > 0)
    if not bool(sound.all()):
        frame, patch = (~sound).nonzero()[0, :2].tolist()
        count = int((~sound).sum())
        msg = (
            f"{name} embeddings must be finite and nonzero, got {count} that are not, first in frame {frame}, patch "
            f"{patch}: compute them again"
        )
        raise InputError(msg)
    return embeddings / norms


def _sets(splits: Sequence[Label]) -> dict[str, Bool[Tensor, " frames"]]:
    train, val = (torch.tensor([split == name for split in splits]) for name in ("train", "val"))
    return {"overall": torch.ones(len(splits), dtype=torch.bool), "train": train, "val": val}


def _statistics(cosine: Tensor) -> dict[str, float | None]:
    measures: dict[str, Callable[[Tensor], Tensor]] = {
        "mean": torch.mean,
        "std": lambda values: values.std(correction=0),
        "min": torch.min,
        "max": torch.max,
    }
    return {name: float(measure(cosine)) if cosine.numel() else None for name, measure in measures.items()}


def _baselines(
    targets: Float[Tensor, "frames patches dim"], sets: dict[str, Bool[Tensor, " frames"]], seed: int
) -> dict[str, dict[str, float | None]]:
    """Return the mean cosine with the targets, per set, of predictions that do not depend on the patch."""
    # A separate generator, so that the report is reproducible and the global one is unchanged.
    generator = torch.Generator().manual_seed(seed)
    noise = functional.normalize(torch.randn(targets.shape, generator=generator), dim=-1)
    order = torch.randperm(targets.shape[0] * targets.shape[1], generator=generator)
    train = targets[sets["train"]]
    guesses = {
        "random": noise,
        "shuffled": targets.flatten(0, 1)[order].view_as(targets),
        "mean_embedding": functional.normalize(train.mean(dim=(0, 1)), dim=0).expand_as(targets),
        "mean_embedding_of_the_place": functional.normalize(train.mean(dim=0), dim=-1).expand_as(targets),
        "previous_frame": torch.cat([targets[:1], targets[:-1]]),
    }
    first = torch.arange(len(targets)) == 0
    report = {}
    for name, guess in guesses.items():
        cosine = (guess * targets).sum(-1)
        # The first frame has no predecessor and would be compared with itself.
        skipped = first if name == "previous_frame" else torch.zeros_like(first)
        report[name] = {key: _statistics(cosine[members & ~skipped])["mean"] for key, members in sets.items()}
    return report


def _diversity(
    predicted: Float[Tensor, "frames patches dim"], targets: Float[Tensor, "frames patches dim"]
) -> dict[str, float | None]:
    spread = {"predicted": _variance(predicted), "target": _variance(targets)}
    distance = {"predicted": _pairwise(predicted), "target": _pairwise(targets)}
    return {
        "predicted_variance": spread["predicted"],
        "target_variance": spread["target"],
        "variance_ratio": _ratio(spread["predicted"], spread["target"]),
        "predicted_pairwise_distance": distance["predicted"],
        "target_pairwise_distance": distance["target"],
        "pairwise_distance_ratio": _ratio(distance["predicted"], distance["target"]),
    }


def _temporal(embeddings: Float[Tensor, "frames patches dim"]) -> dict[str, float | None]:
    """Return statistics of the step lengths from frame to frame, over all patches."""
    return _statistics((embeddings[1:] - embeddings[:-1]).norm(dim=-1))


def _train_val(
    predicted: Float[Tensor, "frames patches dim"], sets: dict[str, Bool[Tensor, " frames"]]
) -> dict[str, float | None]:
    train = _variance(predicted[sets["train"]])
    val = _variance(predicted[sets["val"]]) if bool(sets["val"].any()) else None
    return {"train_variance": train, "val_variance": val, "variance_ratio": None if val is None else _ratio(val, train)}


def _variance(embeddings: Tensor) -> float:
    """Return the variance over all patches, averaged over dimensions."""
    return float(embeddings.flatten(0, 1).var(dim=0, correction=0).mean())


def _pairwise(embeddings: Tensor) -> float:
    flat = embeddings.flatten(0, 1)
    # The number of pairs grows quadratically, so long clips are thinned.
    chosen = flat[torch.linspace(0, len(flat) - 1, min(len(flat), MOST_PAIRED)).round().long()]
    return float(torch.pdist(chosen).mean()) if len(chosen) > 1 else 0.0


def _ratio(a: float, b: float) -> float | None:
    return a / b if b > 0 else None


def _score(report: dict[str, Any]) -> dict[str, int]:
    diversity = report["diversity"]["variance_ratio"]
    change = report["train_val"]["variance_ratio"]
    varied = report["temporal"]["predicted"]["std"]
    # The limits of the original scripts.
    points = {
        "cosine": sum(report["cosine"]["overall"]["mean"] > limit for limit in (0.5, 0.7, 0.9)),
        "diversity": 0 if diversity is None else (2 if 0.8 < diversity < 1.2 else int(diversity > 0.5)),
        "temporal": int(varied is not None and varied > 0.01),
        "train_val": 0 if change is None else sum(change > limit for limit in (0.5, 0.8)),
    }
    return points | {"total": sum(points.values()), "of": 8 if report["frames"]["val"] else 6}


def _verdict(report: dict[str, Any]) -> str:
    # Checked before the points: predictions equal to the mean embedding can have a high cosine.
    if report["gain"]["overall"] < LEAST_GAIN:
        return "no better than the mean embedding"
    if report["gain"]["val"] is not None and report["gain"]["val"] < LEAST_GAIN:
        return "no better than the mean embedding on val frames"
    share = report["score"]["total"] / report["score"]["of"]
    return "good" if share >= 0.8 else "fair" if share >= 0.6 else "poor"


_SIZE = 860
_PANEL = 340
_EDGE = 70
_FINER = 3
_COLORS = {"train": "#1f5fa8", "val": "#d1490c", "unused": "#8a8a8a"}
_LINES = {"train": "#93b3d6", "val": "#eda47d", "unused": "#cccccc"}


def _tick_step(reach: float) -> float:
    """Return 1, 2 or 5 times a power of ten such that at most 8 steps fit on an axis of length 2 * reach."""
    decade = 10.0 ** math.floor(math.log10(reach))
    return next(factor for factor in (0.5, 1, 2, 5) if 4 * factor * decade >= reach) * decade


class _Canvas:
    """Plot area on the left, legend and notes on the right; drawn at three times the final size for antialiasing."""

    def __init__(self, fitted: EmbeddingMap) -> None:
        points = torch.cat([fitted.predicted.flatten(0, 1), fitted.targets.flatten(0, 1)])
        middle = (points.amax(0) + points.amin(0)) / 2
        # A margin of 6 % keeps points off the frame; the minimum is for a single point.
        self.reach = max(float((points - middle).abs().max()) * 1.06, 1e-6)
        self.middle = (float(middle[0]), float(middle[1]))
        self.image = Image.new("RGB", ((_SIZE + _PANEL) * _FINER, _SIZE * _FINER), "white")
        self.draw = ImageDraw.Draw(self.image)

    def pairs(self, targets: Float[Tensor, "patches 2"], predicted: Float[Tensor, "patches 2"], name: str) -> None:
        """Draw a line, a ring and a dot for each patch."""
        ends = [(self._place(t), self._place(p)) for t, p in zip(targets.tolist(), predicted.tolist(), strict=True)]
        for target, prediction in ends:
            self.draw.line([target, prediction], fill=_LINES[name], width=_FINER)
        for target, prediction in ends:
            self._ring(target, name)
            self._dot(prediction, name)

    def axes(self, explained: tuple[float, float]) -> None:
        """Draw the frame, about four ticks per axis with their values, and the axis labels."""
        low = _EDGE * _FINER
        high = (_SIZE - _EDGE) * _FINER
        self.draw.rectangle([low, low, high, high], outline="#444444", width=_FINER)
        step = _tick_step(self.reach)
        for axis in (0, 1):
            first = math.ceil((self.middle[axis] - self.reach) / step)
            for k in range(first, math.floor((self.middle[axis] + self.reach) / step) + 1):
                self._tick(axis, k * step)
        label = "component {} ({:.0%} of the common variance)"
        self._text((_SIZE / 2, _SIZE - 16), label.format(1, explained[0]), anchor="ms")
        self._text((_EDGE, 40), label.format(2, explained[1]) + ", upwards", anchor="ls")

    def panel(self, names: Sequence[str], notes: Sequence[str]) -> None:
        """Draw the legend with a ring and a dot per set, then the notes."""
        left = _SIZE - 10
        top = _EDGE + 6
        for name in names:
            for mark, text in ((self._ring, "target"), (self._dot, "prediction")):
                mark(((left + 8) * _FINER, top * _FINER), name)
                self._text((left + 26, top), f"{text}, {name}", anchor="lm")
                top += 26
        self.draw.line(
            [(left * _FINER, top * _FINER), ((left + 18) * _FINER, top * _FINER)], fill="#999999", width=_FINER
        )
        self._text((left + 26, top), "connects the two of one patch", anchor="lm")
        lines = [line for note in notes for line in textwrap.wrap(note, 40)]
        for i, line in enumerate(lines):
            self._text((left, top + 44 + 24 * i), line, anchor="lm")

    def save(self, path: Path) -> None:
        """Downscale to the final size and write the file atomically."""
        content = BytesIO()
        self.image.resize((_SIZE + _PANEL, _SIZE), Image.Resampling.LANCZOS).save(content, "PNG")
        write_file(path, content.getvalue(), durable=True)

    def _place(self, point: Sequence[float]) -> tuple[float, float]:
        scale = (_SIZE - 2 * _EDGE) / 2 / self.reach
        x = _SIZE / 2 + (point[0] - self.middle[0]) * scale
        # Image rows count downward, the vertical axis upward.
        y = _SIZE / 2 - (point[1] - self.middle[1]) * scale
        return x * _FINER, y * _FINER

    def _tick(self, axis: int, value: float) -> None:
        x, y = self._place((value, self.middle[1]) if axis == 0 else (self.middle[0], value))
        low = _EDGE * _FINER
        high = (_SIZE - _EDGE) * _FINER
        length = 6 * _FINER
        if axis == 0:
            self.draw.line([(x, high), (x, high + length)], fill="#444444", width=_FINER)
            self._text((x / _FINER, _SIZE - _EDGE + 20), f"{value:.3g}", anchor="mm")
        else:
            self.draw.line([(low - length, y), (low, y)], fill="#444444", width=_FINER)
            self._text((_EDGE - 10, y / _FINER), f"{value:.3g}", anchor="rm")

    def _ring(self, center: tuple[float, float], name: str) -> None:
        self.draw.circle(center, 5 * _FINER, outline=_COLORS[name], width=round(1.5 * _FINER))

    def _dot(self, center: tuple[float, float], name: str) -> None:
        self.draw.circle(center, 3 * _FINER, fill=_COLORS[name])

    def _text(self, position: tuple[float, float], text: str, *, anchor: str) -> None:
        font = ImageFont.load_default(15 * _FINER)
        self.draw.text((position[0] * _FINER, position[1] * _FINER), text, fill="#222222", font=font, anchor=anchor)
