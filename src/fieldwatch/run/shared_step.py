"""All-reduce of gradients and losses for a batch that is sharded over several ranks."""

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
"""Fused in-place multiplication, which :func:`torch.nn.utils.clip_grad_norm_` uses too."""
BUCKET_BYTES = 64 << 20
"""Maximum size in bytes of a gradient bucket; summing it needs the same amount of memory again."""


class RanksDriftedError(RuntimeError):
    """Raised if the ranks no longer have the same parameters, because random draws or decisions differed."""


@dataclass(frozen=True, kw_only=True)
class BatchLosses:
    """Detached losses of a batch, or of a rank's shard of it.

    Attributes:
        total: total loss.
        terms: loss terms.
        sample_loss: loss per sample, shape ``[batch]``; None if it was not measured.
    """

    total: Float[Tensor, ""]
    terms: Terms
    sample_loss: Float[Tensor, " batch"] | None


class SharedVerdict(Verdict):
    """Finiteness of a step on all ranks; reading ``finite`` is a collective operation."""

    __slots__ = ("_ranks",)

    def __init__(self, probe: Float[Tensor, ""], ranks: Ranks) -> None:
        super().__init__(probe)
        self._ranks = ranks

    @property
    def finite(self) -> bool:
        """Whether everything is finite on every rank; all ranks have to read it."""
        return self._ranks.largest([float(not super().finite)]) == [0.0]


def reduce_step(
    ranks: Ranks,
    shard: Shard | None,
    parameters: Sequence[Tensor],
    local: BatchLosses | None,
) -> BatchLosses | None:
    """All-reduce the gradients, in place, and the losses to those of the whole batch.

    If only some ranks have a gradient for a parameter, it is zero on the others. A loss term that only some ranks have
    is averaged over those ranks. So the results agree on all ranks.

    Args:
        ranks: group of processes that train together.
        shard: this rank's shard of the batch; None if all ranks did equal work.
        parameters: trained and watched parameters, in the same order on every rank.
        local: mean losses over this rank's shard; None, on every rank, if no loss was observed.

    Returns:
        The losses of the whole batch; None if ``local`` is None.

    Raises:
        RanksDriftedError: the ranks have parameters of different shapes.
        RankLost: another rank was lost.
    """
    # Without a shard, all ranks did the same amount of work.
    weight = 1 / ranks.world if shard is None else shard.weight
    term_names = _align_gradients(ranks, parameters, () if local is None else tuple(local.terms))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    for bucket in buckets(gradients):
        with torch.no_grad():
            # The mean over the batch is the sum of the shards' means, each weighted by its fraction of the samples.
            _foreach_mul_(bucket, weight)
        ranks.sum(bucket)
    if local is None:
        return None
    return _reduce_losses(ranks, weight, term_names, local, _scatter(shard, local.sample_loss))


def trained_parameters(watched: ParameterGroups, optimizers: Sequence[Optimizer]) -> list[Tensor]:
    """Return every stepped or watched parameter once, in the same order on every rank."""
    stepped = (p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"])
    # Reading the gradients rescans the groups in which densification has replaced parameters.
    watched.gradients()
    # Every rank runs the same program, so groups are tracked in the same order.
    registered = (p for name in watched.names() for p in watched.read(name))
    return list({id(parameter): parameter for parameter in (*stepped, *registered)}.values())


def buckets(gradients: Sequence[Tensor]) -> Iterator[list[Tensor]]:
    """Yield groups of gradients that are summed in one call.

    Each group has one device and one dtype, and at most 64 MiB unless it is a single tensor.

    Raises:
        TypeError: a gradient is sparse.
    """
    kinds: dict[tuple[torch.device, torch.dtype], list[Tensor]] = {}
    for gradient in gradients:
        if gradient.layout != torch.strided:
            raise TypeError(
                f"expected dense gradients, got one with layout {gradient.layout}: training on several ranks does not "
                "support sparse gradients"
            )
        kinds.setdefault((gradient.device, gradient.dtype), []).append(gradient)
    for kind in kinds.values():
        # Buckets share the round trip of a collective, and limit the memory of the flat copy.
        bucket: list[Tensor] = []
        for gradient in kind:
            if bucket and sum(other.nbytes for other in bucket) + gradient.nbytes > BUCKET_BYTES:
                yield bucket
                bucket = []
            bucket.append(gradient)
        yield bucket


def _align_gradients(ranks: Ranks, parameters: Sequence[Tensor], term_names: tuple[str, ...]) -> tuple[str, ...]:
    """Create zero gradients that only other ranks have; return the names of all terms, in the same order."""
    has_gradient = [parameter.grad is not None for parameter in parameters]
    shapes = [list(parameter.shape) for parameter in parameters]
    checksum = float(zlib.crc32(repr((term_names, has_gradient, shapes)).encode()))
    # All checksums are equal if the maximum equals the minimum; one collective computes both.
    largest, smallest = ranks.largest([checksum, -checksum])
    if largest == -smallest:
        return term_names
    by_rank: list[list[Any]] = ranks.all_gather([term_names, has_gradient, shapes])
    _refuse_drift([theirs for _, _, theirs in by_rank])
    for index, parameter in enumerate(parameters):
        # The all-reduce needs the same tensors on all ranks; a zero gradient does not change the sum.
        if parameter.grad is None and any(theirs[index] for _, theirs, _ in by_rank):
            parameter.grad = torch.zeros_like(parameter)
    return tuple(dict.fromkeys(name for theirs, _, _ in by_rank for name in theirs))


def _refuse_drift(shapes: Sequence[Sequence[Any]]) -> None:
    first = shapes[0]
    for rank, theirs in enumerate(shapes):
        for index, (expected, got) in enumerate(zip_longest(first, theirs, fillvalue="missing")):
            if got != expected:
                raise RanksDriftedError(
                    f"parameter {index} has shape {expected} on rank 0 and {got} on rank {rank}, but all ranks must "
                    "have the same parameters: draw random numbers for the whole batch on every rank, and base "
                    "densification on sums over the ranks"
                )


def _reduce_losses(
    ranks: Ranks, weight: float, term_names: Sequence[str], local: BatchLosses, scattered: Tensor | None
) -> BatchLosses:
    with torch.no_grad():
        dtype = local.total.dtype
        # Use double precision, so that the sum over the ranks is exact to float32.
        total = local.total.double()
        absent = torch.zeros_like(total)
        # Per term: weight, weight * value, value, and 1 if the term is present; absent terms stay 0.
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
    """Return the terms from their sums: a weighted mean, or the plain mean if the weight is 0 on every rank."""
    weights, weighted, values, present = sums.view(len(term_names), 4).unbind(1)
    means = torch.where(weights == 0, values / present, weighted / weights)
    return Terms(**{name: (weights[i].to(dtype), means[i].to(dtype)) for i, name in enumerate(term_names)})


def _scatter(shard: Shard | None, sample_loss: Tensor | None) -> Tensor | None:
    """Return a tensor of batch size with the losses of this rank's samples, and zeros elsewhere."""
    if sample_loss is None or shard is None:
        return None
    scattered = sample_loss.new_zeros(shard.batch_size)
    # An empty shard was padded with a sample of weight 0, whose loss is cut off here.
    length = shard.stop - shard.first
    scattered[shard.first : shard.stop] = sample_loss[:length]
    return scattered
