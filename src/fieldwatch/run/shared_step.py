"""A step whose batch is shared by several ranks: gradients and losses become those of the whole batch."""

import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.guard import Verdict
from fieldwatch.measure import ParameterGroups, Terms
from fieldwatch.run.ranks import Ranks, Shard

_foreach_mul_: Any = torch._foreach_mul_  # pyright: ignore[reportPrivateUsage, reportPrivateImportUsage]  as torch clips
"""The fused call that torch's own gradient clipping uses."""
BUCKET_BYTES = 64 << 20
"""Gradients that are summed in one call; summing needs as much memory again."""


class RanksDriftedError(RuntimeError):
    """The ranks no longer have the same parameters: something was drawn, or decided, differently on each."""


@dataclass(frozen=True, kw_only=True)
class BatchLosses:
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


def reduce_step(
    ranks: Ranks,
    shard: Shard | None,
    parameters: Sequence[Tensor],
    local: BatchLosses | None,
) -> BatchLosses | None:
    """Make every gradient that of the whole batch, in place, and the loss with its terms too.

    A parameter that has a gradient on some ranks only gets zeros on the others, and a term that only some ranks have
    counts as absent on the others: both are then the same everywhere.

    Args:
        ranks: who meets.
        shard: this rank's part of the batch; None: every rank did as much as any other.
        parameters: all that are trained or watched, in the same order on every rank.
        local: what was measured of this rank's part, means over it; None where nothing was, then on every rank.

    Returns:
        What was measured of the whole batch.

    Raises:
        RanksDriftedError: parameters differ in shape.
        RankLost: another rank was lost.
    """
    weight = 1 / ranks.world if shard is None else shard.weight
    term_names = _align_gradients(ranks, parameters, () if local is None else tuple(local.terms))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in buckets(gradients):
        with torch.no_grad():
            # A mean over the batch is the sum of the parts' means, each weighed by its share of the samples.
            _foreach_mul_(bucket, weight)
        ranks.sum(bucket)
    if local is None:
        return None
    return _reduce_losses(ranks, weight, term_names, local, _scatter(shard, local.sample_loss))


def trained_parameters(watched: ParameterGroups, optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Every parameter that is stepped now or watched, once, in an order that is the same on every rank."""
    stepped = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    watched.gradients()  # rescans the groups where densification has replaced parameters
    # Every rank runs the same program, so that its groups were tracked in the same order.
    registered = (p for name in watched.names() for p in watched.read(name))
    return list({id(parameter): parameter for parameter in (*stepped, *registered)}.values())


def buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Group gradients into those that are summed in one call: of one device and type, of 64 MiB or one tensor.

    Raises:
        TypeError: one is sparse.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if gradient.layout != torch.strided:
            raise TypeError(f"expected dense gradients, got one that is {gradient.layout}: ranks add dense ones only")
        kinds.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for kind in kinds.values():
        bucket: list[Tensor] = []
        for gradient in kind:
            if bucket and sum(other.nbytes for other in bucket) + gradient.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(gradient)
        yield bucket


def _align_gradients(ranks: Ranks, parameters: Sequence[Tensor], term_names: tuple[str, ...]) -> tuple[str, ...]:
    """Give every rank the gradients that any has; returns the names of all terms, in one order."""
    has_gradient = [parameter.grad is not None for parameter in parameters]
    shapes = [list(parameter.shape) for parameter in parameters]
    checksum = float(zlib.crc32(repr((term_names, has_gradient, shapes)).encode()))
    # All checksums are equal if the largest is the smallest: one collective finds both.
    largest, smallest = ranks.largest([checksum, -checksum])
    if largest == -smallest:
        return term_names
    by_rank: list[list[Any]] = ranks.all_gather([term_names, has_gradient, shapes])
    _refuse_drift([theirs for _, _, theirs in by_rank])
    for index, parameter in enumerate(parameters):
        # The collective needs the same tensors everywhere; a zero gradient adds nothing to the sum.
        if parameter.grad is None and any(theirs[index] for _, theirs, _ in by_rank):
            parameter.grad = torch.zeros_like(parameter)
    return tuple(dict.fromkeys(name for theirs, _, _ in by_rank for name in theirs))


def _refuse_drift(shapes: Sequence[Sequence[Any]]) -> None:
    first = shapes[0]
    for rank, theirs in enumerate(shapes):
        for index, (expected, got) in enumerate(zip_longest(first, theirs, fillvalue="missing")):
            if got != expected:
                raise RanksDriftedError(
                    f"parameter {index} is {expected} on rank 0 and {got} on rank {rank}: the ranks went different "
                    "ways. Draw random numbers for the whole batch on every rank, and decide what grows by sums over "
                    "the ranks"
                )


def _reduce_losses(
    ranks: Ranks, weight: float, term_names: Sequence[str], local: BatchLosses, scattered: Tensor | None
) -> BatchLosses:
    with torch.no_grad():
        dtype = local.total.dtype
        # In double precision, so that the sum over the ranks loses no digit of float32.
        total = local.total.double()
        absent = torch.zeros_like(total)
        # Per term: weight, weight * value, value, and 1 where the term is present; absent ones stay 0.
        columns = [torch.stack([absent] * 4)] * len(term_names)
        for index, name in enumerate(term_names):
            if name in local.terms:
                term = local.terms[name]
                term_weight = torch.as_tensor(term.weight).to(total)
                value = term.value.to(total)
                columns[index] = torch.stack([term_weight, term_weight * value, value, torch.ones_like(total)])
        sums = weight * torch.cat([total[None], *columns])
        to_sum = [sums] if scattered is None else [sums, scattered.double()]
        ranks.sum(to_sum)
        sample_loss = None if scattered is None else to_sum[1].to(dtype)
        return BatchLosses(total=sums[0].to(dtype), terms=_read(sums[1:], term_names, dtype), sample_loss=sample_loss)


def _read(sums: Tensor, term_names: Sequence[str], dtype: torch.dtype) -> Terms:
    """Read terms from sums: a value is the weighted mean, or the plain one where the weight is 0 on every rank."""
    weights, weighted, values, present = sums.view(len(term_names), 4).unbind(1)
    means = torch.where(weights == 0, values / present, weighted / weights)
    return Terms(**{name: (weights[i].to(dtype), means[i].to(dtype)) for i, name in enumerate(term_names)})


def _scatter(shard: Shard | None, sample_loss: Tensor | None) -> Tensor | None:
    """The losses of a rank's samples in their places in the batch, zeros elsewhere."""
    if sample_loss is None or shard is None:
        return None
    scattered = sample_loss.new_zeros(shard.batch_size)
    length = shard.stop - shard.first
    scattered[shard.first : shard.stop] = sample_loss[:length]
    return scattered
