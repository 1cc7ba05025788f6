"""Meaning of a metric for comparisons: its better direction, and its importance."""

import re
from dataclasses import dataclass
from functools import cache
from typing import Literal

from fieldwatch.record import TOOLKIT, Better, tags

_PARTS = re.compile(r"[A-Z]+(?=[A-Z][a-z])|[A-Z]?[a-z]+|[A-Z]+|\d+")
_TOKENS = re.compile(r"[A-Za-z0-9]+")
# Words of names, most of them of metrics that other programs record. A wrong direction would declare the wrong winner,
# so a word is listed only if it has the same meaning in nearly every program.
_NEITHER = {
    "active", "baseline", "beta", "cosine", "count", "eta", "grad", "gradients", "grads", "info",
    "learningrate", "lr", "momentum", "norm", "num", "parameters", "params", "ratio", "reference", "scale", "share",
    "weight",
}  # fmt: skip
_LOWER = {
    "bce", "cd", "cer", "chamfer", "cost", "dist", "distance", "divergence", "err", "error", "errors",
    "failures", "fid", "gap", "giant", "hausdorff", "kid", "kl", "l1", "l2", "loss", "losses", "lpips", "mae",
    "missed", "mse", "needle", "never", "nll", "non", "perplexity", "ppl", "regret", "rmse", "starved", "std",
    "transparent", "wer",
}  # fmt: skip
_HIGHER = {
    "acc", "accuracy", "ap", "auc", "below", "bleu", "consistency", "dice", "f", "f1", "fps", "fscore", "iou",
    "map", "miou", "precision", "psnr", "r2", "recall", "return", "reward", "rouge", "score", "sim",
    "similarity", "ssim", "success", "throughput", "watertight", "within",
}  # fmt: skip
NO_QUALITY = 9
"""Rank of metrics that do not tell which run is better."""
_DESCRIPTIVE = ("Statistics/", "Recovery/", "Population/", "Mesh/")
"""Prefixes of metrics that describe a run rather than its quality."""
_MAIN = {"psnr", "acc", "accuracy", "iou", "miou", "mae", "chamfer", "f1", "auc", "map", "reward", "error", "l1", "mse"}
"""Words of the metrics that papers report, which come before the other metrics of an evaluation."""
_COUNTS = {"Eval/chunk_shrinks", "Eval/mesh_pieces_removed", "Eval/failures"}
_UNSTEADY = {"gap", "std"}
"""Words of metrics that should be low, but do not tell how good a run is."""
_SURELY_HELD_OUT = {"val", "valid", "validation", "test", "held", "heldout", "dev"}
_HELD_OUT = {"val", "valid", "validation", "test", "heldout", "held", "eval", "evaluation", "surface", "dev"}
"""Words of evaluation metrics; an evaluation may also use training data, so those above rank higher."""
_CLOCKS = {
    "cpu", "duration", "elapsed", "eta", "fps", "gb", "gib", "gpu", "hours", "machine", "mb", "memory", "mib",
    "minutes", "ms", "performance", "power", "ram", "sec", "second", "seconds", "secs", "speed", "system",
    "temperature", "tensorprofiling", "throughput", "time", "timing", "utilisation", "utilization", "vram",
}  # fmt: skip
_PER_SECOND = ({"per", "sec"}, {"per", "second"}, {"it", "s"}, {"wall", "clock"})

Source = Literal["declared", "by its name", "not known"]


@dataclass(frozen=True, kw_only=True)
class Meaning:
    """Meaning of a metric.

    Attributes:
        better: better direction; `"none"` if unknown.
        source: whether the direction is declared or inferred from the words of the name.
        machine: whether the metric measures clocks or machines, which differ between runs in any case.
        rank: importance, 0 first: held-out quality, held-out loss, quality, losses; `NO_QUALITY` for all others.
    """

    better: Better
    source: Source
    machine: bool
    rank: int


@cache
def meaning_of(name: str, run_better: Better | None = None) -> Meaning:
    """Return the meaning of a metric: as declared, else inferred from the words of its name.

    Args:
        name: tag of the metric.
        run_better: better direction declared by the run itself, if any.
    """
    words = words_of(name)
    declared = TOOLKIT.find(name)
    unit = declared.unit if declared else ""
    # In MS-SSIM, "ms" is not milliseconds.
    clocks = words & _CLOCKS - ({"ms"} if "ssim" in words else set())
    machine = bool(clocks) or unit in ("ms", "s", "MiB") or any(pair <= words for pair in _PER_SECOND)
    # The run knows its own metrics best: another pipeline may use the same name for something else.
    better = run_better or (declared.better if declared else _direction(words))
    if tags.is_bookkeeping(name):
        better = "none"
    source: Source = "declared" if run_better or declared else "by its name" if better != "none" else "not known"
    return Meaning(better=better, source=source, machine=machine, rank=_rank(name, words, better, machine=machine))


def words_of(name: str) -> set[str]:
    """Return the words that a tag is made of, in lower case."""
    # Both the whole tokens ("mIoU") and their parts in CamelCase ("valLoss"): either may be a known word.
    return {part.lower() for part in (*_TOKENS.findall(name), *_PARTS.findall(name))}


def _direction(words: set[str]) -> Better:
    # Words that make a direction meaningless come first: "grad_norm" and "loss_scale" are not losses.
    if words & _NEITHER or {"learning", "rate"} <= words:
        return "none"
    # Of "psnr_std" or "accuracy_gap", less is better.
    if words & _UNSTEADY:
        return "lower"
    # "precision_error" is an error, "perceptual_similarity_loss" a loss.
    if words & _HIGHER and "error" not in words:
        return "higher" if not words & {"loss", "losses"} else "lower"
    return "lower" if words & _LOWER else "none"


def _rank(name: str, words: set[str], better: Better, *, machine: bool) -> int:
    """Return how much a metric matters, 0 most."""
    no_direction = better not in ("higher", "lower") or machine or bool(words & (_UNSTEADY | _NEITHER))
    # A weighted term depends on its weight, which the runs may have set differently.
    if no_direction or name in _COUNTS or name.startswith(_DESCRIPTIVE) or tags.WEIGHTED.part(name) is not None:
        return NO_QUALITY if no_direction or not name.startswith(_DESCRIPTIVE) else NO_QUALITY - 1
    loss = bool(words & {"loss", "losses"})
    # Quality on held-out data is what a training is for; a training loss may also fall by overfitting.
    if words & _HELD_OUT and "train" not in words:
        main = bool(words & _MAIN and not words & {"min", "max", "median"})
        return 3 if loss else 2 if not main else 0 if words & _SURELY_HELD_OUT else 1
    if not loss:
        return 4
    if tags.COMPONENT.part(name) is not None:
        return 7
    # A short name ("loss") is most likely the total.
    return 5 if "total" in words or len(words) <= 2 else 6
