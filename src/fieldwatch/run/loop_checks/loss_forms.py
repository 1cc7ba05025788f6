"""`LossFormCheck`: losses whose form is a mistake, read from the operations behind them."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, cast

from torch import Tensor

from fieldwatch.measure import Terms

STEPS = 2
"""Number of steps from the first loss on at which the operations are read; they do not change later."""
_MOST_NODES = 64
"""Operations that are read behind each term, nearest to the loss first."""
_SQUASHED = {
    "SoftmaxBackward0": "softmax",
    "LogSoftmaxBackward0": "log_softmax",
    "SigmoidBackward0": "sigmoid",
    "ReluBackward0": "ReLU",
    "TanhBackward0": "tanh",
}
"""Operations after which a value is no longer a logit. log_softmax twice is harmless."""
_VIEWS = frozenset(
    {
        *("ViewBackward0", "UnsafeViewBackward0", "ReshapeAliasBackward0", "TransposeBackward0", "PermuteBackward0"),
        *("SqueezeBackward0", "SqueezeBackward1", "UnsqueezeBackward0", "CloneBackward0", "AliasBackward0"),
        *("ToCopyBackward0", "SliceBackward0", "SelectBackward0", "TBackward0", "MovedimBackward0"),
    }
)
"""Operations that change no value."""
_CLASS_LOSSES = ("NllLossBackward0", "NllLoss2DBackward0")
_ERRORS = frozenset(
    {
        *_CLASS_LOSSES,
        *("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "KlDivBackward0"),
        *("BinaryCrossEntropyWithLogitsBackward0", "BinaryCrossEntropyBackward0"),
    }
)
"""Losses that are 0 for a perfect prediction, so that they are never maximized."""
_REGRESSIONS = frozenset(("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "SubBackward0"))
_LOGIT_LOSSES = ("BinaryCrossEntropyWithLogitsBackward0",)
_YES_NO_LOSSES = (*_LOGIT_LOSSES, "BinaryCrossEntropyBackward0")
_OF_DIFFERENCES = frozenset(
    {
        *("MeanBackward0", "SumBackward0", "PowBackward0", "AbsBackward0", "DivBackward0", "MulBackward0"),
        *("MseLossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0"),
    }
)
"""Operations between a plain regression loss and its difference; distances of two sets use others or several."""
_NEVER_NEGATIVE = {
    "CtcLossBackward0": "CTC loss",
    "BinaryCrossEntropyBackward0": "binary cross-entropy",
    "BinaryCrossEntropyWithLogitsBackward0": "binary cross-entropy",
}
"""Losses that targets in their range never make negative."""
_MEANS = frozenset(("MeanBackward0", "MeanBackward1", "SumBackward0", "SumBackward1", "DivBackward0"))
"""Operations between such a loss and its mean over a batch; they keep its sign."""
_AVERAGES = frozenset(("MeanBackward0", "MeanBackward1"))
_MOST_STEPS = 5
_SCALINGS = frozenset(("DivBackward0", "MulBackward0"))
_KEEP_SHAPE = frozenset(("NegBackward0", "MinimumBackward0"))
_PRODUCTS = frozenset(("MmBackward0", "BmmBackward0"))
_PAIRED = 2
"""Dimensions of a table of pairs, and its least number of rows."""
_DIFFERENCES = ("SubBackward0", "ExpandBackward0")
_DISTANCES = frozenset(("EuclideanDistBackward0", "CdistBackward0", "PdistBackward0"))
_ROWS = frozenset(("IndexBackward0", "IndexSelectBackward0", "SplitBackward0", "ExpandBackward0", "RepeatBackward0"))
"""Operations that choose or repeat rows of outputs."""


class LossFormCheck:
    """Reads names and shapes of the operations between a loss and the outputs that it compares; no tensor is read."""

    def __init__(self) -> None:
        self._seen: set[tuple[str, str]] = set()

    def check(self, since: int, terms: Terms) -> Iterator[dict[str, Any]]:
        """Yield the facts of each event that has to be recorded.

        Args:
            since: number of steps since the first loss.
            terms: loss terms with their graph, before or after the backward pass.
        """
        if since >= STEPS:
            return
        for name, (weight, value) in terms.items():
            # In a game, one player maximizes the error of the other.
            single = len(terms) == 1
            negative = isinstance(weight, int | float) and weight < 0
            for form, facts in _forms(value, negative=negative, single=single):
                if (name, form) not in self._seen:
                    self._seen.add((name, form))
                    yield {"term": name, "form": form, **facts}


def floors(terms: Terms) -> Iterator[dict[str, str]]:
    """Yield each term that is never negative for targets in their range, with its operation."""
    for name, (_, value) in terms.items():
        node = value.grad_fn
        for _ in range(_MOST_STEPS):
            if node is None or node.name() in _NEVER_NEGATIVE:
                break
            parents = [parent for parent, _ in node.next_functions if parent is not None]
            node = parents[0] if node.name() in _MEANS and len(parents) == 1 else None
        if node is not None and node.name() in _NEVER_NEGATIVE:
            yield {"term": name, "operation": _NEVER_NEGATIVE[node.name()]}


def chance_levels(terms: Terms) -> Iterator[dict[str, Any]]:
    """Yield each term that is a mean cross-entropy, with its value for a prediction that prefers nothing.

    No constant prediction needs more than the logarithm of the number of classes, whatever the targets are; for a
    binary cross-entropy that is log 2. A cross-entropy of a batch's similarities (contrastive) has its size as classes.
    """
    for name, (_, value) in terms.items():
        found = _chance(value.grad_fn)
        if found is not None:
            outcomes, operation = found
            yield {"term": name, "outcomes": outcomes, "chance": math.log(outcomes), "operation": operation}


def _chance(root: Any) -> tuple[int, str] | None:
    """Return number of outcomes and name of a cross-entropy that a loss is the mean of; None for other losses."""
    node = root
    averaged = False
    for _ in range(_MOST_STEPS):
        if node is None or node.name() in _CLASS_LOSSES or node.name() in _YES_NO_LOSSES:
            break
        averaged = averaged or node.name() in _AVERAGES
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        node = parents[0] if len(parents) == 1 and (node.name() in _AVERAGES or node.name() in _VIEWS) else None
    # Reduction 1 is the mean, 0 is none.
    reduction = None if node is None else getattr(node, "_saved_reduction", None)
    if node is None or not (reduction == 1 or (reduction == 0 and averaged)):
        return None
    if node.name() in _CLASS_LOSSES:
        before = _source(node)
        axis = None if before is None or before.name() != "LogSoftmaxBackward0" else _axis(before)
        return None if before is None or axis is None else (_shape(before)[axis], "cross-entropy")
    # Weights raise the loss of a constant.
    names = ("_saved_weight", "_saved_pos_weight") if node.name() in _LOGIT_LOSSES else ("_saved_weight",)
    if any(_is_given(node, name) for name in names):
        return None
    return 2, "binary cross-entropy"


def _is_given(node: Any, name: str) -> bool:
    """Return whether an optional tensor was passed to an operation."""
    try:
        return getattr(node, name) is not None
    except RuntimeError:
        # The backward pass has freed it, so there was one.
        return True


def has_yes_no_loss(terms: Terms) -> bool:
    """Return whether a binary cross-entropy is behind any of the terms."""
    return any(node.name() in _YES_NO_LOSSES for _, (_, value) in terms.items() for node in _nodes(value.grad_fn))


def compares_outputs(terms: Terms) -> bool:
    """Return whether a term is one of the distances or differences of outputs from each other.

    Such a loss does not change if all outputs are shifted alike, so that its gradient sums to 0 over a batch.
    """
    return any(_compares(node) for _, (_, value) in terms.items() for node in _nodes(value.grad_fn))


def _compares(node: Any) -> bool:
    """Return whether an operation gives distances within a batch, or differences of rows of the same outputs."""
    if node.name() in _DISTANCES:
        return True
    parents = [parent for parent, _ in node.next_functions]
    if node.name() != "SubBackward0" or len(parents) != 2 or None in parents:
        return False
    first, second = (_rows_source(parent) for parent in parents)
    return first is second and parents[0] is not parents[1]


def _rows_source(node: Any) -> Any:
    """Return the operation whose rows are chosen, repeated or reshaped."""
    while node.name() in _VIEWS or node.name() in _ROWS:
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if not parents:
            break
        node = parents[0]
    return node


def _forms(value: Tensor, *, negative: bool, single: bool) -> Iterator[tuple[str, dict[str, Any]]]:
    root: Any = value.grad_fn
    minus = root is not None and root.name() in ("NegBackward0", "RsubBackward1")
    measured = _source(root) if minus else root
    if single and measured is not None and minus != negative and measured.name() in _ERRORS:
        yield "negated", {}
    yield from _crossings(root)
    if _is_difference_of_chances(root):
        yield "bounded_critic", {"operation": "sigmoid"}
    for node in _nodes(value.grad_fn):
        yield from _forms_of_node(node)


def _crossings(root: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield differences and products of each output with every target or weight."""
    difference = _difference(root)
    shape = None if difference is None else _crossed(difference)
    if shape is not None:
        yield "crossed", {"rows": shape[0]}
    rows = _crossed_product(root)
    if rows:
        yield "crossed_product", {"rows": rows}


def _forms_of_node(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is wrong with one operation of a loss."""
    kind = node.name()
    if _has_moving_target(node):
        yield "moving", {}
    if kind in _CLASS_LOSSES:
        yield from _class_loss(node)
        yield from _similarities(node)
    elif kind in _LOGIT_LOSSES:
        before = _source(node)
        if before is not None and before.name() in ("SigmoidBackward0", "SoftmaxBackward0"):
            yield "activated", {"operation": _SQUASHED[before.name()], "loss": "binary cross-entropy with logits"}
    operation = _without_logarithm(node)
    if operation is not None:
        yield "no_log", {"operation": operation, "loss": "divergence"}
    if kind in _REGRESSIONS:
        before = _source(node)
        if before is not None and before.name() in ("SigmoidBackward0", "TanhBackward0", "ReluBackward0"):
            yield "bounded", {"operation": _SQUASHED[before.name()]}


def _similarities(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield a cross-entropy of the similarities of a batch with itself whose diagonal is not masked."""
    before = _source(node)
    if before is None or before.name() != "LogSoftmaxBackward0":
        return
    inner = _source(before)
    if inner is not None and _with_itself(inner):
        yield "itself", {"rows": _shape(inner)[-1]}


def _class_loss(node: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield what is wrong with a negative log-likelihood: its classes are on dimension 1."""
    before = _source(node)
    kind = before.name() if before is not None else ""
    if before is None or kind not in {"LogSoftmaxBackward0", "LogBackward0"}:
        if kind in ("SoftmaxBackward0", "SigmoidBackward0", "AddmmBackward0", "ReluBackward0"):
            yield "no_log", {"operation": _SQUASHED.get(kind, "a linear layer")}
        return
    if kind == "LogSoftmaxBackward0":
        straight = node.next_functions[0][0] is before
        if straight and _axis(before) == 0 and len(_shape(before)) > 1:
            yield "axis", {"operation": "log_softmax"}
    inner = _source(before)
    if inner is None:
        return
    name = inner.name()
    if name == "SoftmaxBackward0":
        shape = _shape(inner)
        # Past a transposition, the classes may have been on axis 0.
        straight = before.next_functions[0][0] is inner and node.next_functions[0][0] is before
        if straight and _axis(inner) == 0 and len(shape) > 1:
            yield "axis", {"operation": "softmax"}
        if kind == "LogSoftmaxBackward0":
            yield "activated", {"operation": "softmax", "loss": "cross-entropy"}
    elif kind == "LogSoftmaxBackward0" and name in ("SigmoidBackward0", "ReluBackward0", "TanhBackward0"):
        yield "activated", {"operation": _SQUASHED[name], "loss": "cross-entropy"}


def _is_difference_of_chances(root: Any) -> bool:
    """Return whether a loss is the difference of two means of sigmoids, as a critic's that ends with one."""
    node = _first_below(root, ("SubBackward0", "AddBackward0"))
    if node is None or len(node.next_functions) != 2:
        return False
    return all(_first_below(parent, ("SigmoidBackward0",)) is not None for parent, _ in node.next_functions)


def _first_below(root: Any, names: Sequence[str]) -> Any:
    """Return the first operation with one of the names below means, signs and the like; None if there is none."""
    node = root
    for _ in range(_MOST_STEPS + 1):
        if node is None or node.name() in names:
            return node
        node = _below(node)
    return None


def _below(node: Any) -> Any:
    """Return the operation below a mean, a sign, a constant factor or a view; None below any other."""
    parents = [parent for parent, _ in node.next_functions if parent is not None]
    constant = node.name() in _SCALINGS and not _shape(node)
    through = constant or node.name() in _MEANS or node.name() in _VIEWS or node.name() == "NegBackward0"
    return parents[0] if through and len(parents) == 1 else None


def _crossed_product(root: Any) -> int:
    """Return ``n`` if a mean is one of products ``[n, n]`` of outputs and weights with ``n`` entries each, otherwise 0.

    The mean of all products is the product of the means: no output meets the weight that belongs to it.
    """
    node = root
    for _ in range(_MOST_STEPS):
        shape = () if node is None else _shape(node)
        if node is None or (node.name() == "MulBackward0" and len(shape) == _PAIRED):
            break
        scaled = node.name() in _SCALINGS and not shape
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        through = scaled or node.name() in _MEANS or node.name() in _KEEP_SHAPE
        node = parents[0] if through and parents else None
    if node is None:
        return 0
    rows, columns = _shape(node)
    trained = [parent for parent, _ in node.next_functions if parent is not None]
    if rows != columns or rows < _PAIRED or len(trained) != 1:
        return 0
    return rows if _shape(trained[0]) in ((rows,), (rows, 1), (1, rows)) else 0


def _has_moving_target(node: Any) -> bool:
    """Return whether an operation is a divergence (kl_div) both of whose arguments have a gradient."""
    if node.name() not in {"SubBackward0", "MulBackward0"} or len(node.next_functions) != 2:
        return False
    first, second = (parent for parent, _ in node.next_functions)
    if first is None or second is None:
        return False
    below = [parent for parent, _ in second.next_functions]
    if len(below) != 2 or None in below:
        return False
    if node.name() == "SubBackward0":
        return first.name() == "XlogyBackward0" and second.name() == "MulBackward0"
    # With the logarithm of the target: its exponential times the difference of both.
    return first.name() == "ExpBackward0" and second.name() == "SubBackward0" and first.next_functions[0][0] is below[0]


def _with_itself(node: Any) -> bool:
    """Return whether values are the products of all rows of a matrix with each other, the diagonal among them."""
    for _ in range(_MOST_STEPS):
        if node is None or node.name() not in _SCALINGS:
            break
        # A temperature that is learned is the other factor.
        node = next((parent for parent, _ in node.next_functions if parent is not None), None)
        while node is not None and node.name() in _VIEWS:
            node = _source(node)
    if node is None or node.name() not in _PRODUCTS:
        return False
    shape = _shape(node)
    parents = [parent for parent, _ in node.next_functions]
    if len(shape) < _PAIRED or shape[-1] != shape[-2] or len(parents) != 2 or None in parents:
        return False
    first, second = (_source(parent) if parent.name() in _VIEWS else parent for parent in parents)
    return first is not None and first is second


def _without_logarithm(node: Any) -> str | None:
    """Return the operation whose probabilities ``kl_div`` got as its first argument, None if it got logarithms.

    Where the target has no gradient, ``kl_div`` is a constant minus the product of target and argument.
    """
    if node.name() != "SubBackward0" or node.next_functions[0][0] is not None:
        return None
    product = node.next_functions[1][0]
    if product is None or product.name() != "MulBackward0" or _shape(product) != _shape(node):
        return None
    factors = [parent for parent, _ in product.next_functions if parent is not None]
    before = _source(product)
    if len(factors) != 1 or before is None or before.name() not in ("SoftmaxBackward0", "SigmoidBackward0"):
        return None
    return _SQUASHED[before.name()]


def _difference(root: Any) -> Any:
    """Return the difference that a mean of squares or of absolute values is made of; None for other losses."""
    node = root
    for _ in range(_MOST_STEPS):
        if node is None or node.name() in _DIFFERENCES:
            return node
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if node.name() not in _OF_DIFFERENCES or len(parents) != 1:
            return None
        node = parents[0]
    return None


def _crossed(node: Any) -> tuple[int, int] | None:
    """Return ``n, n`` for a difference ``[n, n, ...]`` of outputs ``[n, 1, ...]`` or ``[1, n, ...]`` and targets."""
    shape = _shape(node)
    parents = [parent for parent, _ in node.next_functions]
    trained = [parent for parent in parents if parent is not None]
    # Pairs of outputs, as rankings compare them, have a gradient on both sides.
    if len(shape) < _PAIRED or shape[0] != shape[1] or shape[0] < _PAIRED or len(trained) != 1:
        return None
    given = _shape(trained[0])
    rest = shape[2:]
    if given not in ((shape[0], 1, *rest), (1, shape[0], *rest), (shape[0], *rest)):
        return None
    return (shape[0], shape[1])


def _nodes(root: Any) -> Iterator[Any]:
    """Yield the operations behind a value, nearest first."""
    waiting = [root] if root is not None else []
    seen: set[Any] = set()
    while waiting and len(seen) < _MOST_NODES:
        node = waiting.pop(0)
        if node in seen:
            continue
        seen.add(node)
        yield node
        waiting += [parent for parent, _ in node.next_functions if parent is not None]


def _source(node: Any) -> Any:
    """Return the operation whose values an operation gets, past all that only reshape."""
    while True:
        parents = [parent for parent, _ in node.next_functions if parent is not None]
        if not parents:
            return None
        node = parents[0]
        if node.name() not in _VIEWS:
            return node


def _shape(node: Any) -> tuple[int, ...]:
    """Return the shape of the result of an operation; empty if it is unknown."""
    known = getattr(node, "_input_metadata", ())
    return tuple(int(size) for size in cast("Any", known)[0].shape) if len(known) else ()


def _axis(node: Any) -> int | None:
    """Return the dimension over which a softmax sums."""
    dim = getattr(node, "_saved_dim", None)
    if dim is None:
        return None
    # Negative dimensions are stored as unsigned numbers.
    dim = int(dim) - (1 << 64) if int(dim) >= 1 << 63 else int(dim)
    return dim if dim >= 0 else dim + len(_shape(node))
