"""One step of somebody's training loop, and what it may say about itself."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, is_dataclass, replace
from functools import partial
from typing import Any, Protocol, TypeAlias, TypeVar, cast, overload, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.checkpoint import Stateful
from fieldwatch.guard import (
    SKIPPED,
    Clip,
    Verdict,
    clip_gradients,
    guarded_step,
    prefer_fused,
    rate_tensors,
    settings_finite,
    state_norms,
)
from fieldwatch.measure import (
    Clock,
    GradientNorms,
    Heading,
    Terms,
    UpdateSizes,
    attribute_terms,
    gradient_norms,
    largest_gradient,
    parameter_statistics,
)
from fieldwatch.record import Axis, tags
from fieldwatch.record.sinks import TextSink
from fieldwatch.run.checkpoint_coverage import CheckpointCoverage
from fieldwatch.run.log import RunLog
from fieldwatch.run.memory import RunMemory
from fieldwatch.run.micro_batches import MicroBatches, cut, length_of, most_pieces, split_evenly
from fieldwatch.run.ranks import Ranks, Shard
from fieldwatch.run.retry import Retry
from fieldwatch.run.run_record import RunRecord
from fieldwatch.run.shared_step import BatchLosses, SharedVerdict, reduce_step, trained_parameters
from fieldwatch.run.tracked_objects import TrackedObjects
from fieldwatch.run.watchdog import Watchdog

Batch = TypeVar("Batch")
Piece = TypeVar("Piece")
Samples: TypeAlias = str | int | Sequence[str | int]
"""Name of a sample (a view, a frame, a patch), or one name per sample of a batch."""


@runtime_checkable
class HasTerms(Protocol):
    """What an objective may return instead of plain terms: an object that has them."""

    @property
    def terms(self) -> Terms:
        """The loss terms."""
        ...


Output = TypeVar("Output", bound=HasTerms)


@dataclass(frozen=True, kw_only=True)
class StepOutput:
    """What an objective returns when the loop needs more of a forward pass than its loss terms; extend it by fields.

    Attributes:
        terms: the loss terms; without their graph once ``step.backward`` returns.
        sample_loss: the loss of each sample, shape ``[samples]``; None where it is not measured.
    """

    terms: Terms
    sample_loss: Float[Tensor, " samples"] | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class StepContext:
    """The parts of a run that its steps use.

    Attributes:
        tracked: what is trained.
        ranks: the processes that train together.
        clock: measures spans.
        watchdog: receives signs of life.
        memory: measures memory.
        record: the record.
        log: events, and the training time.
        coverage: notices what no checkpoint holds.
        retry: repeats work that ran out of memory.
        detail_every: steps between two records of what costs more.
        skips: whether the update of a step is skipped, because the run went back for it.
    """

    tracked: TrackedObjects
    ranks: Ranks
    clock: Clock
    watchdog: Watchdog
    memory: RunMemory
    record: RunRecord
    log: RunLog
    coverage: CheckpointCoverage
    retry: Retry
    detail_every: int
    skips: Callable[[int], bool]

    def span(self, name: str) -> AbstractContextManager[None]:
        """Measure the time of a block as ``Time/<name>``, and give a sign of life."""
        self.watchdog.alive(name)
        return self.clock.span(name)


@dataclass(frozen=True, kw_only=True, slots=True)
class StepSnapshot:
    """What a step had recorded at some moment.

    Attributes:
        device_values: by name, on the device.
        host_values: by name, on the host.
        samples: their names.
        verdict: of the loss.
        updated: whether the parameters were updated.
    """

    device_values: dict[str, Tensor]
    host_values: dict[str, float]
    samples: tuple[str, ...]
    verdict: Verdict | None
    updated: bool


class Step:
    """One optimizer step, given out by :meth:`Run.steps`. Everything it is told stays on the device.

    Attributes:
        index: 0-based number of the step; it continues after a resume.
    """

    __slots__ = (
        "_context",
        "_names",
        "_sample_loss",
        "_shard",
        "_updated",
        "_verdict",
        "device_values",
        "host_values",
        "index",
        "samples",
    )

    def __init__(self, context: StepContext, index: int) -> None:
        self.index = index
        self._context = context
        self._verdict: Verdict | None = None
        self._updated = False
        self.device_values: dict[str, Tensor] = {}
        self.host_values: dict[str, float] = {}
        self.samples: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._sample_loss: Tensor | None = None
        self._shard: Shard | None = None

    @property
    def values(self) -> Mapping[str, Tensor]:
        """What the step recorded so far that lives on the device, by name."""
        return self.device_values

    @property
    def numbers(self) -> Mapping[str, float]:
        """What the step recorded so far that is known on the host, by name."""
        return self.host_values

    def every(self, steps: int) -> bool:
        """Whether this is the last of every so many steps: true at steps-1, 2*steps-1, ..."""
        return (self.index + 1) % steps == 0

    def attribute(self, terms: Terms, *, every: int = 1) -> None:
        """Record which term pulls which watched group how hard, and which terms disagree; before ``backward``.

        Args:
            terms: the step's loss terms, their graph still alive.
            every: do it on every so many steps only (it costs a backward pass per term); 0 never does.
        """
        if every and len(terms) > 1 and self.every(every):
            self.device_values |= attribute_terms(terms, self._context.tracked.watched, self.span)

    def shard(self, batch: Batch) -> Batch:
        """Return this rank's part of a batch that every rank has drawn; all of it where there is one rank only.

        Means over the part then count in gradients and losses by its length. Where there are fewer samples than ranks,
        an empty part is padded with the first sample at weight 0, so that a loop needs no special case.

        Args:
            batch: what :func:`~fieldwatch.run.micro_batches.length_of` can count: a tensor, a list of samples, or
                columns of equal length.

        Raises:
            ValueError: another batch of this step was shared already, of another length.
        """
        return batch if self._context.ranks.alone else cut(batch, self.shard_of(length_of(batch)).padded)

    def shard_of(self, batch_size: int) -> Shard:
        """Which entries of a batch of so many are this rank's, for what cannot be cut by :meth:`shard`.

        Raises:
            ValueError: another length was shared already in this step.
        """
        shard = self._context.ranks.shard_of(batch_size)
        if self._shard not in (None, shard):
            earlier = self._shard.batch_size if self._shard else 0
            raise ValueError(
                f"step {self.index} shared a batch of {earlier} among the ranks, and now one of {batch_size}: share "
                "one batch per step, and cut the rest along with it"
            )
        self._shard = shard
        return shard

    @property
    def terms(self) -> Terms:
        """The loss terms of the whole batch, detached, after :meth:`update`; before it, of this rank's part."""
        recorded = {**self.host_values, **self.device_values}
        return Terms(
            **{
                name: (recorded[tags.WEIGHT.tag(name)], self.device_values[tags.COMPONENT.tag(name)])
                for name in self._names
            }
        )

    @property
    def sample_loss(self) -> Float[Tensor, " batch"]:
        """The loss of each sample of the whole batch, after :meth:`update`; before it, of this rank's part.

        Raises:
            ValueError: it was not observed.
        """
        if self._sample_loss is None:
            raise ValueError("the step was told no loss per sample: give step.observe(...) sample and sample_loss")
        return self._sample_loss

    def observe(
        self,
        terms: Terms,
        sample: Samples | None = None,
        sample_loss: Float[Tensor, "batch"] | None = None,
    ) -> Verdict:
        """Record the loss: total, each term's value and weight, and which samples they came from.

        Args:
            terms: what is being minimised.
            sample: name of the view, frame or patch, or one per entry of the batch: a bad step names it, and spikes
                are judged against the sample's own past.
            sample_loss: the loss of each sample of the batch, where there are several; with several ranks, of this
                rank's part, while ``sample`` names the whole batch.

        Returns:
            The verdict; asking it ``.finite`` is the only host read there is, and only then.
        """
        ranks = self._context.ranks
        total = terms.total
        self._record_terms(terms, total)
        self._name_samples(sample, sample_loss)
        self._verdict = Verdict(total) if ranks.alone else SharedVerdict(total, ranks)
        return self._verdict

    @overload
    def backward(
        self,
        objective: Callable[[Batch], Terms],
        batch: Batch,
        *,
        micro_batches: MicroBatches | None = None,
        split: None = None,
        undo: Sequence[Stateful] = (),
        samples: Samples | None = None,
        attribute_every: int = 0,
    ) -> Terms: ...

    @overload
    def backward(
        self,
        objective: Callable[[Piece], Terms],
        batch: Batch,
        *,
        micro_batches: MicroBatches | None = None,
        split: Callable[[Batch, int], Iterator[tuple[Piece, float]]],
        undo: Sequence[Stateful] = (),
        samples: Samples | None = None,
        attribute_every: int = 0,
    ) -> Terms: ...

    @overload
    def backward(
        self,
        objective: Callable[[Batch], Output],
        batch: Batch,
        *,
        micro_batches: MicroBatches | None = None,
        split: None = None,
        undo: Sequence[Stateful] = (),
        samples: Samples | None = None,
        attribute_every: int = 0,
    ) -> list[Output]: ...

    @overload
    def backward(
        self,
        objective: Callable[[Piece], Output],
        batch: Batch,
        *,
        micro_batches: MicroBatches | None = None,
        split: Callable[[Batch, int], Iterator[tuple[Piece, float]]],
        undo: Sequence[Stateful] = (),
        samples: Samples | None = None,
        attribute_every: int = 0,
    ) -> list[Output]: ...

    def backward(  # noqa: PLR0913  the objective and its batch; the rest are options with defaults
        self,
        objective: Callable[[Any], Any],
        batch: Any,
        *,
        micro_batches: MicroBatches | None = None,
        split: Callable[[Any, int], Iterator[tuple[Any, float]]] | None = None,
        undo: Sequence[Stateful] = (),
        samples: Samples | None = None,
        attribute_every: int = 0,
    ) -> Any:
        """Compute the gradients of an objective on a batch: ``zero_grad``, forward, backward; and observe its terms.

        The batch is processed in ``micro_batches.count`` pieces, one by default: each piece's total is multiplied by
        the piece's share of the batch before it goes backward, so that the gradients are those of the mean over the
        batch, and its graph is freed before the next piece begins. If memory runs out, the random states, ``undo`` and
        everything recorded in this step are restored, the number of micro-batches is doubled, and the step is
        repeated. Time is measured as ``Time/forward`` and ``Time/backward``.

        With several ranks, give it this rank's part: ``step.backward(objective, step.own(batch))``.

        Args:
            objective: returns the loss terms of a piece, means over its samples; or an object that has them as
                ``terms``, such as a :class:`StepOutput`.
            batch: what the objective is called with; a tensor, a list of samples, or columns of equal length (a
                mapping, a dataclass, a tuple of tensors). With ``split`` it may be anything.
            micro_batches: the number of pieces; the run's own by default. Another one has to be tracked.
            split: cuts the batch into a number of pieces, and yields each with its share.
            undo: what else the objective changes, such as generators of its own; copied at every step.
            samples: names of the samples of the whole batch, as in :meth:`observe`; their losses are the
                ``sample_loss`` of the objective's outputs, where they have any.
            attribute_every: steps between two measurements of which term drives which group, see :meth:`attribute`.

        Returns:
            The terms of the batch without their graph, where the objective returns terms. Else the objective's outputs,
            one per piece; dataclasses among them have their terms without the graph.

        Raises:
            InputError: the batch has to be cut, and does not say how.
            torch.OutOfMemoryError, MemoryError, RuntimeError: memory ran out with as many pieces as possible.
        """
        context = self._context
        division = micro_batches or context.tracked.micro_batches
        pieces_of = split or split_evenly

        def work() -> list[tuple[float, Any]]:
            context.tracked.clear_gradients()
            add = partial(self._add_gradients, objective, attribute_every)
            return list(map(add, pieces_of(batch, division.count)))  # unlike a loop, map holds no piece while it waits

        most = None if split is not None else most_pieces(batch)
        outputs = context.retry(work, division, step=self, undo=undo, most=most)
        terms = Terms.merged([(share, terms_of(output)) for share, output in outputs])
        losses = [getattr(output, "sample_loss", None) for _, output in outputs]
        known = [loss for loss in losses if loss is not None]
        # Losses of some pieces only cannot be matched with the names of the samples.
        sample_loss = torch.cat(known) if len(known) == len(losses) else None
        self.observe(terms, sample=samples, sample_loss=sample_loss)
        if isinstance(outputs[0][1], Terms):
            return terms
        return [output for _, output in outputs]

    def _add_gradients(
        self, objective: Callable[[Any], Any], attribute_every: int, piece_and_share: tuple[Any, float]
    ) -> tuple[float, Any]:
        """Add the gradients of one piece; its graph is the only one alive."""
        piece, share = piece_and_share
        with self.span("forward"):
            output = objective(piece)
        terms = terms_of(output)
        self.attribute(terms, every=attribute_every)
        with self.span("backward"):
            # The piece's mean counts by its share of the batch.
            backpropagate(terms.total * share)
        return share, without_graph(output)

    def update(self, *optimizers: Optimizer, clip: Clip | None = None) -> None:
        """Step the optimizers, unless the loss or a gradient is not finite: then nothing changes, and it is counted.

        Args:
            optimizers: all that step now; one call per step.
            clip: a limit for the total gradient norm, or one per watched group. Norms are recorded from before.

        Raises:
            ValueError: there is no gradient, or ``update`` was called twice in one step.
        """
        if self._updated:
            raise ValueError("step.update(...) was already called in this step: pass all optimizers in one call")
        self._updated = True
        watched = self._context.tracked.watched
        watched.stepped_by(optimizers)
        self._context.memory.at_update(self.index)
        if not self._context.ranks.alone:
            # Before norms, clipping and the verdict: all ranks have to decide on the same gradients.
            self._reduce_over_ranks(optimizers)
        norms = gradient_norms(watched)
        if norms is None:
            raise ValueError("no parameter has a gradient: call terms.total.backward() before step.update(...)")
        self._record_gradients(norms, optimizers)
        refused = self._refused(norms.total, optimizers)
        self.device_values["Guard/refused"] = refused
        # Copies the parameters, to compare them with what the update makes of them.
        sizes = UpdateSizes(watched) if self.every(self._context.detail_every) else None
        if clip is not None:
            clip_gradients(clip, norms.by_group(), norms.groups, norms.total)
        for optimizer in optimizers:
            # On a CPU the flag is read at no cost, and any implementation can be skipped.
            if refused.is_cuda and prefer_fused(optimizer):
                self._context.log.event("optimizer_fused", optimizer=type(optimizer).__name__)
            guarded_step(optimizer, refused)
        self._context.coverage.check_optimizers(optimizers)
        if sizes is not None:
            self.device_values |= sizes.ratios()

    def record(self, values: Mapping[str, float | Tensor], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record more quantities by their declared names: of this step, or on another axis (an epoch's means).

        Args:
            values: numbers, or scalar tensors, which are not read here.
            axis: what ``position`` counts.
            position: where they stand on that axis; the step's index if left out.

        Raises:
            ValueError: a tensor is not a scalar.
        """
        if axis == "step" and position is None:
            _sort_by_device(values, self.device_values, self.host_values)
            return
        device_values: dict[str, Tensor] = {}
        host_values: dict[str, float] = {}
        _sort_by_device(values, device_values, host_values)
        where = self.index if position is None else position
        self._context.record.write(
            Heading(axis, self.index, where, self._context.log.seconds), device_values, host_values
        )

    def span(self, name: str) -> AbstractContextManager[None]:
        """Measure the time of a block as ``Time/<name>`` in milliseconds."""
        return self._context.span(name)

    def image(self, name: str, pixels: NDArray[np.uint8], *, position: int | None = None) -> None:
        """Show an image (``[height, width, 3]`` uint8) in every sink that can; at this step, or at an epoch."""
        self._context.record.image(name, pixels, self.index if position is None else position)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], *, position: int | None = None) -> None:
        """Show the distribution of some values in every sink that can. Reads the values: not for every step."""
        self._context.record.histogram(name, values, self.index if position is None else position)

    def text(self, name: str, markdown: str, *, position: int | None = None) -> None:
        """Show a text (Markdown) in every sink that can."""
        self._context.record.show(TextSink, "text", name, self.index if position is None else position, markdown)

    @property
    def updated(self) -> bool:
        """Whether :meth:`update` was called."""
        return self._updated

    def snapshot(self) -> StepSnapshot:
        """Copy what this step has recorded so far."""
        return StepSnapshot(
            device_values=self.device_values.copy(),
            host_values=self.host_values.copy(),
            samples=self.samples,
            verdict=self._verdict,
            updated=self._updated,
        )

    def restore(self, snapshot: StepSnapshot) -> None:
        """Forget what this step recorded since then; an update cannot be undone."""
        self.device_values = snapshot.device_values.copy()
        self.host_values = snapshot.host_values.copy()
        self.samples = snapshot.samples
        self._verdict = snapshot.verdict

    def _name_samples(self, sample: Samples | None, sample_loss: Float[Tensor, "batch"] | None) -> None:
        if sample is None:
            return
        self.samples = (str(sample),) if isinstance(sample, str | int) else tuple(map(str, sample))
        if sample_loss is not None:
            names = self.samples if self._shard is None else self.samples[self._shard.padded]
            if sample_loss.shape != (len(names),):
                shape = tuple(sample_loss.shape)
                raise ValueError(f"sample_loss has shape {shape} for {len(names)} samples: give one loss per sample")
            self._sample_loss = sample_loss.detach()
            self._record_sample_losses(self._sample_loss, 0 if self._shard is None else self._shard.first)

    def _record_sample_losses(self, sample_loss: Float[Tensor, "part"], first: int) -> None:
        losses = sample_loss.unbind()
        self.device_values |= {tags.sample_loss(first + k): loss for k, loss in enumerate(losses)}

    def _record_terms(self, terms: Terms, total: Float[Tensor, ""]) -> None:
        self._names = tuple(terms)
        self.device_values[tags.TOTAL] = total.detach()
        weights: dict[str, float | Tensor] = {}
        for name, (weight, value) in terms.items():
            self.device_values[tags.COMPONENT.tag(name)] = value.detach()
            weights[tags.WEIGHT.tag(name)] = weight
        _sort_by_device(weights, self.device_values, self.host_values)

    def _reduce_over_ranks(self, optimizers: Sequence[Optimizer]) -> None:
        """Make the gradients those of the whole batch, and what was observed too; then it is the same on every rank."""
        context = self._context
        parameters = trained_parameters(context.tracked.watched, optimizers)
        total = self.device_values.get(tags.TOTAL)
        local = None if total is None else BatchLosses(total=total, terms=self.terms, sample_loss=self._sample_loss)
        whole = reduce_step(context.ranks, self._shard, parameters, local)
        if whole is None:
            return
        # A weight that was a number on the host is a tensor after the reduction: one name must not have both.
        for name in whole.terms:
            self.host_values.pop(tags.WEIGHT.tag(name), None)
        self._record_terms(whole.terms, whole.total)
        self._verdict = Verdict(whole.total)
        if whole.sample_loss is not None:
            self._sample_loss = whole.sample_loss
            self._record_sample_losses(whole.sample_loss, 0)

    def _refused(self, norm: Float[Tensor, ""], optimizers: Sequence[Optimizer]) -> Float[Tensor, ""]:
        """1.0 on the device when nothing may change: loss, gradients or rates not finite, or the step is skipped."""
        for rate in rate_tensors(optimizers):
            # Adds 0 for a finite rate and NaN for any other, without reading it.
            norm = norm + (rate - rate)
        refused = (self._verdict or Verdict(norm)).refused(norm)
        if self._context.skips(self.index):
            self.host_values[SKIPPED] = 1.0
        elif settings_finite(optimizers):
            return refused
        return torch.ones_like(refused)

    def _record_gradients(self, norms: GradientNorms, optimizers: Sequence[Optimizer]) -> None:
        values = self.device_values
        values[tags.TOTAL_NORM] = norms.total
        for group, norm in norms.groups.items():
            values[tags.GRADIENT_NORM.tag(group)] = norm
        if self.every(self._context.detail_every):
            values[tags.LARGEST_GRADIENT] = largest_gradient(norms.gradients)
            values |= parameter_statistics(self._context.tracked.watched)
        # At step 0 too: a later non-finite value is a divergence only if a finite one was seen before.
        if self.index == 0 or self.every(self._context.detail_every):
            values |= state_norms(self._context.tracked.watched.owners().values(), optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates = {tags.LEARNING_RATE.tag(group.get("name", i)): group["lr"] for i, group in enumerate(groups)}
        _sort_by_device(rates, values, self.host_values)


def backpropagate(total: Float[Tensor, ""]) -> None:
    """Add the gradients of a total to those of the parameters."""
    total.backward()  # pyright: ignore[reportUnknownMemberType]  torch leaves its parameters without types


def terms_of(output: Terms | HasTerms) -> Terms:
    """Return the terms that an objective returned, alone or in an object."""
    return output if isinstance(output, Terms) else output.terms


def without_graph(output: Any) -> Any:
    """Return an objective's output with detached terms; an object that is no dataclass as it is."""
    if isinstance(output, Terms):
        return output.detach()
    if is_dataclass(output) and not isinstance(output, type):
        return replace(cast("Any", output), terms=cast("HasTerms", output).terms.detach())
    return output


def _sort_by_device(
    values: Mapping[str, float | Tensor], device_values: dict[str, Tensor], host_values: dict[str, float]
) -> None:
    """Put tensors to the values of the device, numbers to those of the host; a tensor's graph is let go of."""
    for name, value in values.items():
        if not isinstance(value, Tensor):
            host_values[name] = value
        elif value.ndim:
            raise ValueError(f"metric {name!r} must be a scalar, got shape {tuple(value.shape)}: reduce it first")
        else:  # detach() takes ten times as long as asking whether there is anything to detach from
            device_values[name] = value.detach() if value.requires_grad else value
