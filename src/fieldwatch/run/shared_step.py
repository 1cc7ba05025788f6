"""A step whose batch is shared by several ranks: gradients and losses become those of the whole batch."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.guard import Verdict
from fieldwatch.measure import Terms, Watched
from fieldwatch.run.ranks import Ranks, Share

_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  as torch clips
"""The fused call that torch's own gradient clipping uses."""
BUCKET_BYTES = 64 << 20
"""How much of the gradients travels at once: the memory that it takes twice."""


class RanksDriftedError(RuntimeError):
    """The ranks no longer have the same parameters: something was drawn, or decided, differently on each."""


@dataclass(frozen=True, kw_only=True)
class Whole:
    """What was measured of a batch, or of a rank's part of it; detached.

    Attributes:
        total: the loss.
        terms: its terms.
        sample_loss: the loss of every sample; None where it was not measured.
    """

    total: Float[Tensor, ""]
    terms: Terms
    sample_loss: Float[Tensor, " batch"] | None


class SharedVerdict(Verdict):
    """The finiteness of a step on all ranks: asking for it lets them meet."""

    __slots__ = ("_ranks",)

    def __init__(self, probe: Float[Tensor, ""], ranks: Ranks) -> None:
        super().__init__(probe)
        self._ranks = ranks

    @property
    def finite(self) -> bool:
        """Whether everything is finite on every rank; all have to ask."""
        return self._ranks.largest([float(not super().finite)]) == [0.0]


def share_step(
    ranks: Ranks,
    share: Share | None,
    parameters: Sequence[Tensor],
    seen: Whole | None,
) -> Whole | None:
    """Make every gradient that of the whole batch, in place, and the loss with its terms too.

    A parameter that has a gradient on some ranks only gets zeros on the others, and a term that only some ranks have
    counts as absent on the others: both are then the same everywhere.

    Args:
        ranks: who meets.
        share: this rank's part of the batch; None: every rank did as much as any other.
        parameters: all that are trained or watched, in the same order on every rank.
        seen: what was measured of this rank's part, means over it; None where nothing was, then on every rank.

    Returns:
        What was measured of the whole batch.

    Raises:
        RanksDriftedError: parameters differ in shape.
        RankLost: another rank was lost.
    """
    weight = 1 / ranks.world if share is None else share.weight
    names = _made_alike(ranks, parameters, () if seen is None else tuple(seen.terms))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in buckets(gradients):
        with torch.no_grad():
            _foreach_mul_(bucket, weight)
        ranks.sum(bucket)
    return None if seen is None else _whole(ranks, weight, names, seen, _in_place(share, seen.sample_loss))


def trained(watched: Watched, optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Every parameter that is stepped now or watched, once, in an order that is the same on every rank."""
    stepped = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    watched.gradients()  # looks for its parameters anew where some were replaced
    seen = (p for name in watched.names() for p in watched.read(name))
    return list({id(parameter): parameter for parameter in (*stepped, *seen)}.values())


def buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Gradients in lists that travel together: of one device and type, of 64 MiB or one tensor.

    Raises:
        TypeError: one is sparse.
    """
    for one in gradients:
        if one.layout != torch.strided:
            raise TypeError(f"a gradient is {one.layout}, and ranks add dense ones only: use dense gradients")
    order = sorted(range(len(gradients)), key=lambda i: (str(gradients[i].device), str(gradients[i].dtype), i))
    for _, kind in groupby(order, key=lambda i: (gradients[i].device, gradients[i].dtype)):
        bucket: list[Tensor] = []
        for i in kind:
            if bucket and sum(one.nbytes for one in bucket) + gradients[i].nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(gradients[i])
        yield bucket


def _made_alike(ranks: Ranks, parameters: Sequence[Tensor], names: tuple[str, ...]) -> tuple[str, ...]:
    """Give every rank the gradients that any has; returns the names of all terms, in one order."""
    present = [parameter.grad is not None for parameter in parameters]
    shapes = [list(parameter.shape) for parameter in parameters]
    mark = float(zlib.crc32(repr((tuple(names), present, shapes)).encode()))
    most, least = ranks.largest([mark, -mark])
    if most == -least:
        return names
    everyone: list[list[Any]] = ranks.gathered([names, present, shapes])
    _refuse_drift(everyone)
    for i, parameter in enumerate(parameters):
        if parameter.grad is None and any(has[i] for _, has, _ in everyone):
            parameter.grad = torch.zeros_like(parameter)
    return tuple(dict.fromkeys(name for theirs, _, _ in everyone for name in theirs))


def _refuse_drift(everyone: Sequence[Sequence[Any]]) -> None:
    own = everyone[0][2]
    for rank, (_, _, theirs) in enumerate(everyone):
        if theirs != own:
            place = next((i for i, (a, b) in enumerate(zip(own, theirs, strict=False)) if a != b), len(own))
            first, other = (shapes[place] if place < len(shapes) else "missing" for shapes in (own, theirs))
            raise RanksDriftedError(
                f"parameter {place} is {first} on rank 0 and {other} on rank {rank}: the ranks went different ways. "
                "Draw random numbers for the whole batch on every rank, and decide what grows by sums over the ranks"
            )


def _whole(ranks: Ranks, weight: float, names: Sequence[str], seen: Whole, placed: Tensor | None) -> Whole:
    with torch.no_grad():
        total, terms = seen.total.double(), dict(seen.terms.items())
        zero = torch.zeros_like(total)
        own = [terms.get(name) for name in names]
        weights = [zero if term is None else torch.as_tensor(term.weight).to(zero) for term in own]
        values = [zero if term is None else term.value.to(zero) for term in own]
        present = [zero if term is None else zero + 1 for term in own]
        weighted = [one * value for one, value in zip(weights, values, strict=True)]
        sums = weight * torch.stack([total, *weights, *weighted, *values, *present])
        gathered = [sums] if placed is None else [sums, placed.double()]
        ranks.sum(gathered)
        kind = seen.total.dtype
        sample_loss = None if placed is None else gathered[1].to(kind)
        return Whole(total=sums[0].to(kind), terms=_read(sums[1:], names, kind), sample_loss=sample_loss)


def _read(sums: Tensor, names: Sequence[str], kind: torch.dtype) -> Terms:
    """What the sums say: a term's value is its weighted mean, or the plain one where its weight is 0 everywhere."""
    weights, weighted, values, present = sums.view(4, len(names)).unbind()
    means = torch.where(weights == 0, values / present, weighted / weights)
    return Terms(**{name: (weights[i].to(kind), means[i].to(kind)) for i, name in enumerate(names)})


def _in_place(share: Share | None, sample_loss: Tensor | None) -> Tensor | None:
    """The losses of a rank's samples in their places in the batch, zeros elsewhere."""
    if sample_loss is None or share is None:
        return None
    placed = sample_loss.new_zeros(share.whole)
    own = share.last - share.first
    placed[share.first : share.last] = sample_loss[:own]
    return placed
