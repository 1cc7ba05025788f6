"""Measures of what a run achieved: metrics of held-out data, the fall of the loss, and what outputs imply."""

import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from itertools import pairwise
from types import MappingProxyType
from typing import Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from fieldwatch.health.window import finite_median, is_signed, noise
from fieldwatch.record import TOOLKIT, History, Series, tags

Direction = Literal["higher", "lower"]
_HELD_OUT = frozenset(
    {
        *("eval", "evaluation", "test", "validation", "valid", "val", "dev", "holdout", "heldout"),
        *("backtest", "unseen", "ood", "benchmark"),
    }
)
"""Words in the names of metrics that are measured on data that was not trained on."""
_RARELY = 0.1
"""Fraction of the steps at which evaluations are made at most."""
_OWN_GROUPS = frozenset(
    {
        *(tags.LOSS, tags.GUARD, tags.FORWARD, tags.SAMPLE, tags.TIME, tags.MEMORY, tags.MACHINE),
        *("Gradients", "Parameters", "LearningRate", "Baseline"),
    }
)
"""Groups of the toolkit's own metrics: what it records there is no result, even if its name is new."""
_OVERWRITTEN = 1.0
"""Ratio of the first update and the parameters from which little of the initial values is left."""
_NAMES_OF_LOSSES: Mapping[str, tuple[tuple[str, ...], ...]] = MappingProxyType(
    {
        "cross-entropy": (("ce",), ("nll",), ("xent",), ("cross", "entropy"), ("crossentropy",)),
        "binary cross-entropy": (("bce",), ("logloss",), ("log", "loss")),
    }
)
"""Words by which losses go in the names of metrics, by operation."""
_LOSSES = frozenset({"loss"}).union(
    *(words for all_of in _NAMES_OF_LOSSES.values() for words in all_of if len(words) == 1)
)
"""Single words in the names of metrics that are losses."""
_LIKELIHOODS = frozenset(("likelihood", "loglik", "elbo"))
"""Words in the names of metrics that are the negative of a loss."""
_LEAST_SAME = 4
"""Recordings that have to agree before two series count as the same."""
YES_NO = 0.02
"""Relative deviation from the gradient of a binary cross-entropy that counts as rounding."""
WORDS = re.compile(r"[a-z0-9]+")
"""Words in the name of a metric in lower case."""
_CROSS_ENTROPY = frozenset(("cross", "entropy", "ce", "xent", "nll", "softmax", "loss", "class", "classification"))
"""Words in the names of terms that are cross-entropies of classes, next to a held-out accuracy."""
_HIGHER = frozenset(
    {
        *("accuracy", "acc", "precision", "recall", "f1", "auc", "map", "r2"),
        *("psnr", "ssim", "iou", "miou", "dice"),
        *("return", "reward", "score", "success", "wins", "solved"),
        *("right", "correct", "hit", "hits", "top1", "top5", "ndcg", "mrr", "auroc", "bleu", "rouge", "miou"),
        *("explained", "correlation", "corr", "spearman", "pearson", "kendall", "kappa", "mcc", "agreement"),
        *("ap", "ap50", "map50", "auprc", "aupr", "specificity", "jaccard", "top3", "top10", "pck", "oks"),
        *("mota", "hota", "idf1", "snr", "sdr", "sisdr", "sisnr", "pesq", "stoi", "chrf", "meteor"),
        *("concordance", "silhouette", "sharpe"),
        *("likelihood", "loglik", "elbo", "purity", "nmi", "ari", "coverage", "similarity", "quality"),
        *("skill", "nse", "kge", "cindex", "fidelity", "winrate", "fscore", "fbeta", "gain", "gains"),
        *("match", "matched", "matches", "won", "survived", "found", "detected", "retrieved", "reached", "completed"),
        *("overlap", "overlaps", "knn", "within", "agree", "agrees", "recognized", "recalled"),
        *("passed", "answered", "recovered", "decoded", "identified", "guessed", "delivered", "uplift"),
    }
)
_LOWER = frozenset(
    {
        *("loss", "error", "mae", "mse", "rmse", "l1", "l2"),
        *("nll", "perplexity", "wer", "cer"),
        *("lpips", "fid", "chamfer"),
        *("err", "errors", "distance", "deviation", "residual", "degrees", "mape", "smape", "crps", "regret", "misses"),
        "unexplained",
        *("nrmse", "rmsle", "medae", "nme", "mpjpe", "ate", "rpe", "mcd", "der", "eer", "fpr", "fnr", "kid", "fvd"),
        *("logloss", "hamming", "collisions", "crashes", "violation"),
        *("ppl", "bpc", "bpd", "brier", "ece", "mmd", "wasserstein", "emd", "epe", "violations", "mistakes"),
        *("ce", "bce", "xent", "crossentropy", "huber", "pinball", "off", "wrong", "miss", "missed"),
        *("fail", "failed", "failure", "failures", "lost", "cost", "costs", "drift", "delay", "lag"),
        # A result in units of length, money or information is how far an answer is off.
        *("meters", "km", "cm", "mm", "pixels", "px", "voxels", "dollars", "euros", "cents", "nats", "bits"),
    }
)
_BOUND = re.compile(r"within[^a-z0-9/]*(?:[0-9]|(?:an?|one|two|three|half)[^a-z/])[^/]*")
"""A bound in the name of a metric, which is the share of the samples that keep it."""
_SPREADS = frozenset(("std", "stddev", "stdev", "variance", "iqr"))
"""Words in the names of metrics that say how far scores differ, not how good they are."""
_EXTREMES = frozenset(("min", "max"))
"""Words in the names of metrics of single samples, which vary more than a result as a whole."""
_DIFFERENCES = frozenset(("gap",))
"""Words in the names of metrics that are differences of two scores."""
_PAIRS = frozenset(("cindex", "crossentropy", "winrate", "fscore", "logloss"))
ACCURACIES = frozenset(("accuracy", "acc", "right", "correct", "hit", "hits", "top1"))
"""Words in the names of metrics that count right answers."""
_OTHER_ACCURACY = frozenset(
    ("balanced", "macro", "mean", "worst", "sequence", "exact", "word", "words", "whole", "min")
)
"""Words of accuracies that do not give each sample and each answer the same weight."""
_CENTERED = (
    *("explained", "r2", "correlation", "corr", "spearman", "pearson", "kendall", "kappa", "mcc"),
    # Skill scores are improvements on a reference, as a fraction of its error (Nash and Sutcliffe: of the mean).
    *("skill", "nse"),
)
_GAINS = frozenset(("gain", "gains", "uplift"))
"""Words in the names of metrics that are differences to a result without the model, in any unit."""
NATURAL: Mapping[str, float] = MappingProxyType(
    {**{str(word): 0.0 for word in _CENTERED}, "auc": 0.5, "auroc": 0.5, "concordance": 0.5, "cindex": 0.5},
)
"""Values that a prediction without any information reaches, by the words of metrics that are defined by it."""
FRACTIONS = frozenset(("accuracy", "acc", "precision", "recall", "f1", "iou", "miou", "dice", "overlap", "jaccard"))
"""Words in the names of metrics that are fractions, or percentages if they exceed 1."""
TRAINING = frozenset(("train", "training", "seen", "batch", "minibatch", "fitted", "insample"))
"""Words in the names of metrics that are measured on training data."""
_PARTS_OF_DATA = frozenset(("left", "out", "held", "new", "later", "other", "others", "fresh", "heldout"))
"""Further words that say on which data a metric was measured, not what it is."""
CLASS_SUM_BOUND = 0.01
"""Largest sum of a gradient over the classes, as a fraction of the gradient, that counts as 0."""
CLASS_SUM_REASON = "the gradient of a cross-entropy sums to exactly 0 over the classes; this is rounding of half types"
_NAMES = 1 << 15
"""Number of names whose words are remembered: rules ask for those of all metrics at every examination."""


def is_gain(name: str) -> bool:
    """Return whether a metric is the gain over a result without the model, which is 0 if nothing was learned."""
    return bool(name_words(name) & _GAINS)


def is_relative_error(name: str) -> bool:
    """Return whether a metric is an error relative to the size of its target, which is 1 for a prediction of 0."""
    return {"relative", "error"} <= name_words(name)


def declared_baselines(history: History) -> Mapping[str, Mapping[str, Any]]:
    """Return the declared baselines by metric: ``value`` without training, and the direction ``better``."""
    events = history.events(tags.BASELINES)
    return cast("Mapping[str, Mapping[str, Any]]", events[-1].get("baselines", {})) if events else {}


def direction_of(name: str, history: History) -> Direction | None:
    """Return the direction in which a metric improves: as declared, else by its name; None if unknown."""
    declared = declared_baselines(history).get(name, {}).get("better")
    if declared in ("higher", "lower"):
        return declared
    words = name_words(name)
    if words & _SPREADS:
        return None
    # A gap of two scores is none: it is better small, whatever they are.
    if words & _DIFFERENCES:
        return "lower"
    if words & _HIGHER and words & _LOWER:
        # The last word says what it is: dice_loss is a loss, error_correlation a correlation. The unit of a bound
        # (within_1.5_px) says nothing.
        known = [word for word in WORDS.findall(_BOUND.sub("within", name.lower())) if word in _HIGHER | _LOWER]
        return "higher" if known[-1] in _HIGHER else "lower"
    if words & _HIGHER:
        return "higher"
    return "lower" if words & _LOWER else None


@lru_cache(maxsize=_NAMES)
def name_words(name: str) -> frozenset[str]:
    """Return the words of the last part of a metric's name; common names of two words count as one, too.

    Where the last part only names a kind of data or a part of the targets (``PSNR/left_out``, ``R2/wheat``), the group
    says what is measured.
    """
    group, _, last = name.lower().rpartition("/")
    words = WORDS.findall(last)
    if not (_HIGHER | _LOWER | _SPREADS | _DIFFERENCES | _EXTREMES).intersection(words):
        words = [*WORDS.findall(group), *words]
    pairs = ("".join(pair) for pair in pairwise(words))
    return frozenset(words) | _PAIRS.intersection(pairs)


@lru_cache(maxsize=_NAMES)
def _all_words(name: str) -> frozenset[str]:
    """Return the words of a metric's whole name."""
    return frozenset(WORDS.findall(name.lower()))


def late(series: Series) -> float:
    """Return the median of the last four recordings, or of those of the second half of the run if these are fewer."""
    half = series.steps >= series.steps[-1] / 2
    return finite_median(series.values[half][-4:])


def single_loss(history: History) -> Series | None:
    """Return the loss of a run that has only one term, which is never negative; None for other runs."""
    if tags.TOTAL not in history or len(tags.COMPONENT.parts(history.names())) > 1:
        return None
    series = history[tags.TOTAL]
    return None if is_signed(series.values) else series


def has_rewards(history: History) -> bool:
    """Return whether a run records returns or rewards."""
    return any(name_words(name) & {"reward", "return", "returns", "rewards"} for name in history.names())


def is_played(history: History, usual: float = 0.1) -> bool:
    """Return whether a policy is trained by updates of usual size: its losses rise with the returns that it gets.

    Args:
        history: record of the run.
        usual: largest usual ratio of update and parameter norm.
    """
    # The names first: most runs have no rewards, and then no median is needed.
    if not has_rewards(history):
        return False
    ratios = [finite_median(history[name].values) for name in tags.UPDATE_RATIO.parts(history.names()).values()]
    # Parameters that the first update has overwritten are so large afterwards that later updates look usual.
    first = [float(history[name].values[0]) for name in tags.FIRST_UPDATE.parts(history.names()).values()]
    return 0 < max(ratios, default=0.0) < usual and max(first, default=0.0) < _OVERWRITTEN


def whole(values: NDArray[np.float64]) -> float:
    """Return the value of 100 % in a series of fractions: 100 if they are recorded as percentages, otherwise 1."""
    return 100.0 if float(np.nanmax(values)) > 1.5 else 1.0


def held_out_accuracy(history: History) -> Iterator[tuple[str, float]]:
    """Yield the held-out metrics that count right answers, with their last value as a fraction."""
    for name, better in held_out_metrics(history).items():
        values = history[name].values
        if better == "higher" and name_words(name) & ACCURACIES and float(np.nanmin(values)) >= 0:
            yield name, float(values.max() if keeps_weights(history) else values[-1]) / whole(values)


def keeps_weights(history: History) -> bool:
    """Return whether a loop ends with a copy of earlier weights in a variable: of the best ones, which then count."""
    return any(
        not event["shared"] and (not event["same"] or "best" in str(event["name"]).lower())
        for event in history.events(tags.KEPT_WEIGHTS)
    )


def has_improved(history: History, gain: float = 0.1, move: float = 0.2, apart: float = 0.1) -> bool:
    """Return whether a held-out metric is better at the end than at first, or has moved if its direction is unknown.

    A fraction of unknown direction may be near 1 from the first evaluation on: it also has moved if the rest to 1 has.

    Args:
        history: record of the run.
        gain: least gain, as a fraction of the first value.
        move: least change in any direction, as a fraction of the first value.
        apart: least change of a fraction whose rest to 1 has moved.
    """
    for name in history.names():
        if not is_result(name, history) or len(history[name]) < 2:
            continue
        values = history[name].values
        first = float(values[0])
        better = direction_of(name, history)
        change = finite_median(values[-2:]) - first if len(values) > 2 else float(values[-1]) - first
        if better is None and (abs(change) > move * abs(first) or _nears_a_bound(values, change, move, apart)):
            return True
        if better is not None and gain_over(0.0, change, better) > gain * abs(first) and change != 0:
            return True
    return False


def _nears_a_bound(values: NDArray[np.float64], change: float, move: float, apart: float) -> bool:
    """Return whether values are fractions, and what they lack to 1 has changed by more than noise."""
    if not (float(np.nanmin(values)) >= 0 and float(np.nanmax(values)) <= 1):
        return False
    return abs(change) > max(move * (1 - float(values[0])), apart)


def shows_learning(history: History, share: float = 0.2, gain: float = 0.1, least: float = 0.1) -> bool:
    """Return whether a held-out result of known direction shows that something was learned.

    A training loss near that of a guess shows nothing if most of its targets are noise; an evaluation does.

    Args:
        history: record of the run.
        share: least way from the value of a prediction without information to a perfect one.
        gain: least gain over the first evaluation, as a fraction of it.
        least: least gain of a metric that is a fraction.
    """
    for name, better in held_out_metrics(history).items():
        # A loss that falls from far above that of a guess may still be no better than one.
        if name_words(name) & _LOSSES:
            continue
        values = history[name].values
        last = finite_median(values[-3:])
        known = [NATURAL[word] for word in name_words(name) if word in NATURAL]
        if known:
            if last - known[0] > share * (1 - known[0]):
                return True
            continue
        first = float(values[0])
        won = gain_over(first, last, better)
        fraction = name_words(name) & (FRACTIONS | ACCURACIES) and float(np.nanmin(values)) >= 0
        if len(values) > 1 and won > gain * abs(first) and won > (least * whole(values) if fraction else 0.0):
            return True
    return False


def held_out_metrics(history: History) -> dict[str, Direction]:
    """Return the recorded held-out metrics with a known direction.

    The name of such a metric says so (``Eval/accuracy``, ``val_loss``) or has no group at all (``reward``), or the loop
    records it at few steps only, as an evaluation does (``Rollout/return``).
    """
    names = [name for name in history.names() if is_held_out(name) or is_rare(name, history)]
    # A gap between training and held-out data grows with any training, and is no result; nor is a baseline.
    names = [name for name in names if not is_training(name) and not name_words(name) & _DIFFERENCES]
    names = [name for name in names if tags.BASELINE.part(name) is None]
    return {name: better for name in names if (better := direction_of(name, history))}


def is_evaluated(history: History) -> bool:
    """Return whether the loop has recorded anything on held-out data, whatever its name says of its direction."""
    return any(is_result(name, history) for name in history.names())


def is_result(name: str, history: History) -> bool:
    """Return whether a metric is one of the loop's own on held-out data."""
    if is_training(name) or TOOLKIT.find(name) is not None or name_words(name) & _DIFFERENCES:
        return False
    return is_held_out(name) or is_rare(name, history)


def is_rare(name: str, history: History) -> bool:
    """Return whether the loop records a metric of its own at few steps only, as an evaluation does."""
    if tags.kind(name) in _OWN_GROUPS or history.rows(name) < 2 or TOOLKIT.find(name) is not None:
        return False
    return 2 <= len(history[name]) <= _RARELY * (history.step + 1)


def is_held_out(name: str) -> bool:
    """Return whether the name of a metric says that it is held out, or it has no group."""
    return "/" not in name or not _HELD_OUT.isdisjoint(_all_words(name))


def core_words(name: str) -> frozenset[str]:
    """Return the words of a metric's name that do not say on which data it was measured."""
    return _all_words(name) - TRAINING - _HELD_OUT - _PARTS_OF_DATA


def is_training(name: str) -> bool:
    """Return whether the name of a metric says that it was measured on training data."""
    return not TRAINING.isdisjoint(_all_words(name))


def gain_over(first: float, last: float, better: Direction) -> float:
    """Return by how much the last value is better than the first."""
    return last - first if better == "higher" else first - last


def gains_over_first(values: NDArray[np.float64], better: Direction) -> NDArray[np.float64]:
    """Return the gain of every evaluation over the first one."""
    return np.array([gain_over(float(values[0]), float(value), better) for value in values])


def first_step(history: History) -> int:
    """Return the step from which on a loop trains: that of the first update if it is recorded, else the first one."""
    updates = [int(history[name].steps[0]) for name in tags.FIRST_UPDATE.parts(history.names()).values()]
    return max(min(updates, default=0), history.first, 0)


def fall_from_guess(history: History, bound: float = CLASS_SUM_BOUND) -> float | None:
    """Return how far the only classifier of a run has got below the loss of a guess at the end, as a fraction of it.

    A model that is trained already begins far below a guess, and so does one whose first update has learned most.

    Args:
        history: record of the run.
        bound: largest sum of a gradient over the classes that counts as 0.

    Returns:
        1 for certain and right answers, 0 for those of a guess; None if there is not exactly one classifier.
    """
    items = list(classifiers(history, bound))
    names = [family.tag(item) for item in items for family in (tags.IMPLIED_LOSS, tags.TARGET_ENTROPY)]
    if len(items) != 1 or any(name not in history for name in names):
        return None
    implied, entropies = (history[name] for name in names)
    entropy = float(entropies.values[-1])
    return 1 - late(implied) / entropy if entropy > 0 else None


def loss_reduction(history: History, *, head: int = 5, share: float = 0.1) -> float | None:
    """Return the relative fall of the loss from its first to its last recordings; None if it has no meaning."""
    if tags.TOTAL not in history:
        return None
    series = history[tags.TOTAL]
    values = series.values[np.isfinite(series.values)]
    start = series.start
    first = start.values[np.isfinite(start.values)]
    # A record that starts late does not show the loss at the start of training.
    if len(values) < 4 * head or is_signed(values) or start.steps[0] > first_step(history):
        return None
    began = float(np.median(first[:head])) if len(first) else 0.0
    ended = float(np.median(values[-max(int(share * len(values)), head) :]))
    return 1 - ended / began if began > 0 else None


def loss_ends(loss: Series) -> tuple[float, float]:
    """Return the median of the first five and of the last tenth of the recordings of a loss.

    Of a run that is longer than the history's capacity, the last tenth of what is kept.
    """
    values = loss.values
    return finite_median(loss.start.values[:5]), finite_median(values[-max(len(values) // 10, 5) :])


def is_plain_accuracy(name: str) -> bool:
    """Return whether a metric is the share of right answers among all samples."""
    words = name_words(name)
    return bool(words & {"accuracy", "acc"}) and not words & _OTHER_ACCURACY


def implied_accuracy_gap(history: History, name: str, loss: float) -> float:
    """Return by how much a held-out accuracy is below the one that a training loss implies; 0 for other metrics.

    A cross-entropy of L means that the right answers have a mean probability of at least exp(-L) (Jensen). That says
    nothing of an accuracy that is averaged over the classes: rare ones hardly count in the loss.
    """
    terms = {word for term in tags.COMPONENT.parts(history.names()) for word in WORDS.findall(term.lower())}
    if not core_words(name) & {"accuracy", "acc"} or not is_plain_accuracy(name) or not terms & _CROSS_ENTROPY:
        return 0.0
    last = float(history[name].values[-1])
    scale = 100.0 if float(np.nanmax(history[name].values)) > 1 else 1.0
    return float(np.exp(-loss)) - last / scale


def held_out_losses(history: History) -> Iterator[tuple[str, Series]]:
    """Yield each held-out metric that is the training loss on other data, with that loss.

    It is one if it has the name of the term, if the loop records the loss under that name for training, too, or if it
    is called a loss or a cross-entropy and the loss is a single one.
    """
    total = single_loss(history)
    terms = tags.COMPONENT.parts(history.names())
    by_words = {frozenset(WORDS.findall(term.lower())): history[name] for term, name in terms.items()}
    if total is not None:
        for name in history.names():
            if is_training(name) and TOOLKIT.find(name) is None and _is_same(history[name], total):
                by_words.setdefault(core_words(name), total)
        by_words.setdefault(frozenset({"loss"}), total)
        by_words |= {
            frozenset(words): total
            for event in history.events("chance_level")
            for words in _NAMES_OF_LOSSES.get(str(event["operation"]), ())
        }
    for name in history.names():
        words = frozenset(WORDS.findall(name.rpartition("/")[2].lower())) - _HELD_OUT
        # A term may have the name of the score that it stands for, such as dice.
        known = words in by_words and direction_of(name, history) != "higher"
        if known and is_result(name, history) and not is_signed(by_words[words].values):
            yield name, by_words[words]


def follows_training(name: str, history: History, share: float = 0.5, certain: float = 5.0) -> bool:
    """Return whether a held-out result is the training loss on other data, and shows most of what training gained.

    A loss that was learned before the first evaluation does not move afterwards; one of a density may have any value at
    its best, so that only its fall says anything.

    Args:
        name: name of the result.
        history: record of the run.
        share: least part of the fall of the training loss that it shows.
        certain: least fall of the training loss, in standard errors.
    """
    if tags.TOTAL not in history or len(tags.COMPONENT.parts(history.names())) > 1:
        return False
    total = history[tags.TOTAL]
    began, ended = loss_ends(total)
    part = total.values[-max(len(total) // 10, 5) :]
    # The steep fall of the first recordings is no noise.
    error = noise(part) * float(1 / np.sqrt(len(part)) + 1 / np.sqrt(5))
    if not began - ended > certain * error:
        return False
    last = finite_median(history[name].values[-3:])
    words = name_words(name)
    if words & _LIKELIHOODS:
        last = -last
    elif not words & _LOSSES:
        return False
    gained = began - ended
    return abs(last - ended) < (1 - share) * gained


def held_out_lag(history: History) -> float:
    """Return which part of the fall of the training loss the same loss on held-out data lacks at the end; 0 if unknown.

    A part of it is usual: training data are always fitted better.
    """
    found = [0.0]
    for name, loss in held_out_losses(history):
        began, ended = loss_ends(loss)
        last = float(history[name].values[-1])
        if began > ended and np.isfinite(last):
            found.append((last - ended) / (began - ended))
    return max(found)


def _is_same(series: Series, total: Series) -> bool:
    """Return whether a recorded series holds the values of a loss."""
    places = np.minimum(np.searchsorted(total.steps, series.steps), len(total) - 1)
    same = total.values[places]
    return len(series) >= _LEAST_SAME and bool(np.allclose(series.values, same, rtol=1e-3, atol=0.0, equal_nan=True))


def mean_until(series: Series, step: float, width: int = 32) -> float:
    """Return the mean of the last finite values up to a step; infinity if there are none.

    Of a run that is longer than the history's capacity, what was kept of its middle counts.
    """
    part = series.values[series.steps <= step][-width:]
    if not len(part) and series.thinned is not None:
        part = series.thinned.values[series.thinned.steps <= step][-width:]
    if not len(part):
        part = series.start.values[series.start.steps <= step][-width:]
    return float(np.nanmean(part)) if np.isfinite(part).any() else np.inf


def classifiers(history: History, bound: float) -> Iterator[str]:
    """Yield the modules whose outputs are logits of classes, as their gradients show."""
    for item, name in tags.CLASS_SUM.parts(history.names()).items():
        if finite_median(history[name].values) < bound:
            yield item


def yes_no(history: History) -> Iterator[str]:
    """Yield the modules whose targets are yes or no, as their gradients or the operations behind the loss show."""
    items = tags.BINARY_SPREAD.parts(history.names())
    exact = [item for item, name in items.items() if finite_median(history[name].values) < YES_NO]
    # With further terms beside the cross-entropy, or weights of the samples, only the sign of the gradient is known.
    named = bool(history.events("yes_no_loss"))
    yield from exact or (list(items) if named and len(items) == 1 else ())


def head_median(series: Series, head: int = 32) -> float:
    """Return the median of the first recordings, at most 64."""
    return finite_median(series.start.values[:head])


def agrees(total: Series, implied: Series, bound: float) -> bool:
    """Return whether a loss is the one that the outputs imply, at the first and the last measured steps."""
    places = np.searchsorted(total.steps, implied.steps)
    places = np.minimum(places, len(total) - 1)
    ratio = total.values[places] / np.maximum(implied.values, 1e-12)
    return all(abs(finite_median(part) - 1) < bound for part in (ratio[:32], ratio[-4:]))
