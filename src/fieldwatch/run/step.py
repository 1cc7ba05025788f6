"""`Step`: one iteration of a training loop, with its loss, gradients, update and recorded values."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from functools import lru_cache, partial
from typing import Any, TypeAlias, TypeVar, overload

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.optim import Optimizer

from fieldwatch.checkpoint import Stateful
from fieldwatch.guard import Clip, Verdict
from fieldwatch.measure import Heading, Terms, attribute_terms
from fieldwatch.record import Axis, tags
from fieldwatch.record.sinks import TextSink
from fieldwatch.run.memory import SAMPLE_EVERY
from fieldwatch.run.micro_batches import MicroBatches, cut, length_of, most_pieces, split_evenly
from fieldwatch.run.objective import HasTerms, backpropagate, terms_of, without_graph
from fieldwatch.run.observer import ObservedStep
from fieldwatch.run.ranks import Shard
from fieldwatch.run.shared_step import BatchLosses, SharedVerdict, reduce_step, trained_parameters
from fieldwatch.run.step_context import StepContext
from fieldwatch.run.step_snapshot import StepSnapshot
from fieldwatch.run.step_update import Closure, StepUpdates, unscale_gradients
from fieldwatch.run.step_values import sort_by_device

Batch = TypeVar("Batch")
Piece = TypeVar("Piece")
Samples: TypeAlias = str | int | Sequence[str | int]
"""Name of a sample (a view, a frame, a patch), or one name per sample of a batch."""
Output = TypeVar("Output", bound=HasTerms)


@lru_cache(maxsize=64)
def _tags_of_terms(names: tuple[str, ...]) -> tuple[tuple[str, str], ...]:
    """Return the tags of value and weight of each term."""
    return tuple((tags.COMPONENT.tag(name), tags.WEIGHT.tag(name)) for name in names)


class Step:
    """One optimizer step, yielded by :meth:`Run.steps`. Recorded tensors stay on the device until they are written.

    Attributes:
        index: 0-based index of the step; it continues after a resume.
    """

    __slots__ = (
        "_context",
        "_names",
        "_sample_loss",
        "_shard",
        "_updated",
        "_updates",
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
        self._updates: StepUpdates | None = None
        self.device_values: dict[str, Tensor] = {}
        self.host_values: dict[str, float] = {}
        self.samples: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._sample_loss: Tensor | None = None
        self._shard: Shard | None = None

    @property
    def values(self) -> Mapping[str, Tensor]:
        """Scalar tensors that the step has recorded so far, by metric name."""
        return self.device_values

    @property
    def numbers(self) -> Mapping[str, float]:
        """Python numbers that the step has recorded so far, by metric name."""
        return self.host_values

    def every(self, steps: int) -> bool:
        """Return whether the step ends an interval of ``steps``: true at steps-1, 2*steps-1, ..."""
        return (self.index + 1) % steps == 0

    def attribute(self, terms: Terms, *, every: int = 1) -> None:
        """Record the gradient norm of each loss term per watched group, and the conflicts between terms.

        Call it before the backward pass, while the graph still exists.

        Args:
            terms: loss terms of the step, with their graph.
            every: number of steps between two measurements, each of which costs a backward pass per term; 0 disables
                them.
        """
        # A single term needs no attribution: its gradient is the total gradient, which `update` records.
        if every and len(terms) > 1 and self.every(every):
            self.device_values |= attribute_terms(terms, self._context.tracked.watched, self.span)

    def shard(self, batch: Batch) -> Batch:
        """Return this rank's shard of a batch that all ranks have drawn; the whole batch if there is one rank.

        Gradients and losses that are means over the shard are weighted by its length. If there are fewer samples than
        ranks, an empty shard is padded with the first sample at weight 0, so the loop needs no special case.

        Args:
            batch: a tensor, a list of samples, or columns of equal length, see
                :func:`~fieldwatch.run.micro_batches.length_of`.

        Raises:
            ValueError: a batch of a different length was already sharded in this step.
        """
        return batch if self._context.ranks.alone else cut(batch, self.shard_of(length_of(batch)).padded)

    def shard_of(self, batch_size: int) -> Shard:
        """Return which entries of a batch belong to this rank, for data that :meth:`shard` cannot slice.

        Args:
            batch_size: number of samples in the whole batch.

        Raises:
            ValueError: a batch of a different length was already sharded in this step.
        """
        shard = self._context.ranks.shard_of(batch_size)
        # All gradients and losses of a step get the weight of one shard, so there can be only one batch size.
        if self._shard not in (None, shard):
            earlier = self._shard.batch_size if self._shard else 0
            raise ValueError(
                f"step {self.index} already sharded a batch of {earlier} samples, got another one of {batch_size}: "
                "shard one batch per step, and slice everything else along with it"
            )
        self._shard = shard
        return shard

    @property
    def terms(self) -> Terms:
        """Detached loss terms: of this rank's shard before :meth:`update`, of the whole batch after it."""
        # A weight may be a number or a tensor, and is recorded on the host or the device accordingly.
        recorded = {**self.host_values, **self.device_values}
        return Terms(
            **{
                name: (recorded[tags.WEIGHT.tag(name)], self.device_values[tags.COMPONENT.tag(name)])
                for name in self._names
            }
        )

    @property
    def sample_loss(self) -> Float[Tensor, " batch"]:
        """Loss per sample: of this rank's shard before :meth:`update`, of the whole batch after it.

        Raises:
            ValueError: no loss per sample was observed.
        """
        if self._sample_loss is None:
            raise ValueError("the step has no loss per sample: pass sample and sample_loss to step.observe(...)")
        return self._sample_loss

    def observe(
        self,
        terms: Terms,
        sample: Samples | None = None,
        sample_loss: Float[Tensor, "batch"] | None = None,
    ) -> Verdict:
        """Record the loss: its total, the value and weight of each term, and the names of the samples.

        Args:
            terms: loss terms being minimized.
            sample: name of the view, frame or patch, or one name per entry of the batch. Reports of a bad step
                include it, and spikes are judged against earlier losses of the same sample.
            sample_loss: loss per sample, for a batch with several samples, shape ``[batch]``. With several ranks it
                covers this rank's shard, while ``sample`` names the whole batch.

        Returns:
            The verdict on the loss. Only reading its ``finite`` property synchronizes with the device.

        Raises:
            TypeError: ``terms`` is something else, such as a loss alone.
        """
        terms = terms_of(terms)
        if self._context.observer.active:
            self._context.observer.at_terms(terms, 1.0)
        return self._observe(terms, sample, sample_loss)

    def _observe(self, terms: Terms, sample: Samples | None, sample_loss: Float[Tensor, "batch"] | None) -> Verdict:
        ranks = self._context.ranks
        terms.add_up_on_host()
        self._context.loop_checks.at_terms(self.index, terms)
        total = terms.total
        earlier = self.terms if self._updated else None
        self._record_terms(terms, total)
        if earlier is not None and len(earlier):
            self._add_terms(earlier, terms)
        if sample is not None:
            self._name_samples(sample, sample_loss)
        # With several ranks, all have to branch alike, so a non-finite loss on one rank counts for all.
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
        """Compute the gradients of an objective: ``zero_grad``, forward and backward; then :meth:`observe` its terms.

        The batch is processed in ``micro_batches.count`` pieces, one by default. The total loss of each piece is
        weighted by the piece's fraction of the batch, so the gradients are those of the mean over the batch, and its
        graph is freed before the next piece starts. If memory runs out, the random states, ``undo`` and the values
        recorded in this step are restored, the number of micro-batches is doubled, and the step is retried. Times are
        recorded as ``Time/forward`` and ``Time/backward``.

        With several ranks, pass this rank's shard: ``step.backward(objective, step.shard(batch))``.

        Args:
            objective: function of a piece that returns its loss terms, averaged over the samples of the piece, or an
                object with a ``terms`` attribute such as a :class:`StepOutput`.
            batch: input of the objective: a tensor, a list of samples, or columns of equal length (a mapping, a
                dataclass, a tuple of tensors). With ``split`` it may have any type.
            micro_batches: number of pieces; defaults to the run's. Any other has to be tracked.
            split: function that cuts the batch into a given number of pieces and yields each with its fraction of
                the batch.
            undo: other state that the objective changes, such as its generators; copied at every step.
            samples: names of the samples of the whole batch, as in :meth:`observe`; their losses are taken from the
                ``sample_loss`` of the objective's outputs, if present.
            attribute_every: number of steps between two calls of :meth:`attribute`; 0 disables it.

        Returns:
            The detached terms of the batch if the objective returns :class:`Terms`. Otherwise the list of the
            objective's outputs, one per piece; the terms of dataclass outputs are detached.

        Raises:
            InputError: the batch has to be cut, but has no length and ``split`` is missing.
            torch.OutOfMemoryError, MemoryError, RuntimeError: memory ran out with the largest number of pieces.
        """
        context = self._context
        division = micro_batches or context.tracked.micro_batches
        pieces_of = split or split_evenly

        def work() -> list[tuple[float, Any]]:
            # Clear the gradients inside the retried work: a failed attempt may have accumulated some of them.
            context.tracked.clear_gradients()
            add = partial(self._add_gradients, objective, attribute_every)
            # A loop variable would keep a piece alive while the next one is cut; map does not.
            return list(map(add, pieces_of(batch, division.count)))

        # A custom split defines itself how finely it can divide the batch.
        most = None if split is not None else most_pieces(batch)
        outputs = context.retry(work, division, step=self, undo=undo, most=most)
        terms = Terms.merged([(fraction, terms_of(output)) for fraction, output in outputs])
        losses = [getattr(output, "sample_loss", None) for _, output in outputs]
        known = [loss for loss in losses if loss is not None]
        # If only some pieces have losses, they cannot be matched with the names of the samples.
        sample_loss = None
        if len(known) == len(losses):
            sample_loss = known[0] if len(known) == 1 else torch.cat(known)
        self._observe(terms, samples, sample_loss)
        if isinstance(outputs[0][1], Terms):
            return terms
        return [output for _, output in outputs]

    def _add_gradients(
        self, objective: Callable[[Any], Any], attribute_every: int, piece_and_fraction: tuple[Any, float]
    ) -> tuple[float, Any]:
        """Run forward and backward on one piece, while no other piece's graph exists."""
        piece, fraction = piece_and_fraction
        with self.span("forward"):
            output = objective(piece)
        terms = terms_of(output)
        self._context.loop_checks.at_terms(self.index, terms)
        self.attribute(terms, every=attribute_every)
        self._context.observer.at_terms(terms, fraction)
        with self.span("backward"):
            # The terms are means over the piece: weight them by its fraction of the batch.
            backpropagate(terms.total if fraction == 1 else terms.total * fraction)
        return fraction, without_graph(output)

    def update(
        self,
        *optimizers: Optimizer,
        clip: Clip | None = None,
        scaler: GradScaler | None = None,
        closure: Closure | None = None,
    ) -> None:
        """Step the optimizers, or refuse the update if the loss or a gradient is not finite.

        A refused update changes neither parameters nor optimizer state, and is counted. A step may have several
        updates, each with its own loss: ``observe`` the terms of a loss before its update.

        Args:
            optimizers: all optimizers that step on these gradients.
            clip: limit for the total gradient norm, or limits by watched group. The recorded norms are those before
                clipping; the factors that clipping applied are recorded as ``Gradients/clip_scale`` or
                ``Gradients/<group>_clip_scale``.
            scaler: scaler that the loss was multiplied with, ``scaler.scale(terms.total).backward()``. The gradients
                are divided by its factor before they are measured and clipped, and it chooses the next factor
                afterwards: call neither ``unscale_`` nor ``step`` nor ``update`` on it. Steps that it skips to lower
                its factor are recorded as ``Guard/scaler_skipped``, and are no refusals.
            closure: for an optimizer such as LBFGS, which computes the loss several times in one update: a function
                that clears the gradients, computes the loss and its gradients, and returns the loss or its
                :class:`Terms`. The first loss is recorded. The optimizer's parameters and state are copied before,
                and restored if anything is not finite.

        Raises:
            ValueError: no parameter has a gradient, or ``closure`` is combined with another option.
        """
        if closure is not None:
            self._update_by_closure(optimizers, closure, alone=clip is None and scaler is None)
            return
        refused = self._check_update(optimizers, clip, scaler, unscale=True)
        updates = self._updates_of_step()
        updates.apply(optimizers, refused, scaler)
        updates.finish(optimizers)

    def check_update(self, *optimizers: Optimizer, scaler: GradScaler | None = None) -> Float[Tensor, ""]:
        """Record the gradients of an update that other code applies, and return whether it must not happen.

        For frameworks that step the optimizer themselves. Call :meth:`after_update` when it has stepped.

        Args:
            optimizers: all optimizers that step on these gradients.
            scaler: scaler that the loss was multiplied with; the gradients must be unscaled already.

        Returns:
            1.0 on the device if the loss or a gradient is not finite, so that the update must not happen; else 0.0.

        Raises:
            ValueError: no parameter has a gradient.
        """
        return self._check_update(optimizers, None, scaler)

    def after_update(self, *optimizers: Optimizer) -> None:
        """Measure what an update by other code has changed, see :meth:`check_update`."""
        self._updates_of_step().finish(optimizers)

    def _check_update(
        self, optimizers: Sequence[Optimizer], clip: Clip | None, scaler: GradScaler | None, *, unscale: bool = False
    ) -> Float[Tensor, ""]:
        # Set this first: once an update has started, the step must not be retried.
        self._updated = True
        # Parameters that only an optimizer holds are counted as the group `other` from now on.
        others = self._context.tracked.updating(optimizers)
        if self.index % SAMPLE_EVERY == 0:
            self._context.memory.at_update()
        if not self._context.ranks.alone:
            # Reduce before norms, clipping and the verdict: all ranks must decide on the same gradients.
            self._reduce_over_ranks(optimizers)
        if scaler is not None and unscale:
            self._context.coverage.check_scaler(scaler)
            unscale_gradients(scaler, optimizers)
        updates = self._updates_of_step()
        return updates.measure(optimizers, self._verdict, others=others, clip=clip, scaler=scaler)

    def _update_by_closure(self, optimizers: Sequence[Optimizer], closure: Closure, *, alone: bool) -> None:
        if len(optimizers) != 1 or not alone or not self._context.ranks.alone:
            raise ValueError(
                "step.update(optimizer, closure=...) expects one optimizer in one process, without clip and scaler: "
                "the optimizer computes the gradients itself, within its step"
            )

        def begin(result: Tensor | Terms) -> Float[Tensor, ""]:
            if isinstance(result, Terms):
                self._observe(result, None, None)
            else:
                self._verdict = Verdict(result)
            return self._check_update(optimizers, None, None)

        updates = self._updates_of_step()
        updates.apply_closure(optimizers[0], closure, begin)
        updates.finish(optimizers)

    def _updates_of_step(self) -> StepUpdates:
        if self._updates is None:
            self._updates = StepUpdates(self, self._context)
        return self._updates

    def record(self, values: Mapping[str, float | Tensor], *, axis: Axis = "step", position: int | None = None) -> None:
        """Record further metrics, for this step or on another axis (such as the means of an epoch).

        Args:
            values: metric name to a number or scalar tensor. Tensors are not read here, so nothing synchronizes.
            axis: axis that ``position`` refers to.
            position: coordinate of the values on that axis; defaults to the step's index.

        Raises:
            ValueError: a tensor is not a scalar.
        """
        found = self._context.loop_checks.at_record(self.index)
        if found:
            self.device_values |= found
        if axis == "step" and position is None:
            sort_by_device(values, self.device_values, self.host_values)
            return
        # A row on another axis is separate from the step's row, so it is written at once.
        device_values: dict[str, Tensor] = {}
        host_values: dict[str, float] = {}
        sort_by_device(values, device_values, host_values)
        coordinate = self.index if position is None else position
        self._context.record.write(
            Heading(axis, self.index, coordinate, self._context.log.seconds), device_values, host_values
        )

    def span(self, name: str) -> AbstractContextManager[None]:
        """Record the time of a block in ms as ``Time/<name>``."""
        return self._context.span(name)

    def image(self, name: str, pixels: NDArray[np.uint8], *, position: int | None = None) -> None:
        """Send an image (``[height, width, 3]`` uint8) to every sink that supports images.

        Args:
            name: tag of the image.
            pixels: RGB values.
            position: position in the sink, such as an epoch; defaults to the step's index.
        """
        self._context.record.image(name, pixels, self.index if position is None else position)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], *, position: int | None = None) -> None:
        """Send a histogram of values to every sink that supports it. Synchronizes with the device: use it sparingly."""
        self._context.record.histogram(name, values, self.index if position is None else position)

    def text(self, name: str, markdown: str, *, position: int | None = None) -> None:
        """Send a Markdown text to every sink that supports text."""
        self._context.record.show(TextSink, "text", name, self.index if position is None else position, markdown)

    @property
    def known_sample_loss(self) -> Float[Tensor, " batch"] | None:
        """Loss per sample; None if none was observed."""
        return self._sample_loss

    @property
    def updated(self) -> bool:
        """Whether :meth:`update` was called."""
        return self._updated

    def observed(self) -> ObservedStep:
        """Return what the step has recorded, for a replay."""
        return ObservedStep(
            index=self.index,
            values={**self.host_values, **self.device_values},
            samples=self.samples,
            sample_loss=self._sample_loss,
            updated=self._updated,
        )

    def snapshot(self) -> StepSnapshot:
        """Return a copy of the values that the step has recorded so far."""
        return StepSnapshot(
            device_values=self.device_values.copy(),
            host_values=self.host_values.copy(),
            samples=self.samples,
            verdict=self._verdict,
            updated=self._updated,
            forwards=self._context.loop_checks.snapshot(),
        )

    def restore(self, snapshot: StepSnapshot) -> None:
        """Discard everything recorded since the snapshot was taken; an update cannot be undone."""
        self.device_values = snapshot.device_values.copy()
        self.host_values = snapshot.host_values.copy()
        self.samples = snapshot.samples
        self._verdict = snapshot.verdict
        self._context.loop_checks.restore(snapshot.forwards)

    def _name_samples(self, sample: Samples, sample_loss: Float[Tensor, "batch"] | None) -> None:
        # A string is a sequence too, so test for a single name first.
        self.samples = (str(sample),) if isinstance(sample, str | int) else tuple(map(str, sample))
        if sample_loss is not None:
            # With several ranks, `sample` names the whole batch, but the losses are those of this rank's shard.
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
        self._names = names = tuple(terms)
        values = self.device_values
        values[tags.TOTAL] = total.detach() if total.requires_grad else total
        weights: dict[str, Tensor] = {}
        pairs = zip(terms.items(), _tags_of_terms(names), strict=True)
        for (_, (weight, value)), (component, weight_tag) in pairs:
            values[component] = value.detach() if value.requires_grad else value
            if isinstance(weight, Tensor):
                weights[weight_tag] = weight
            else:
                self.host_values[weight_tag] = weight
        if weights:
            sort_by_device(weights, values, self.host_values)

    def _add_terms(self, earlier: Terms, terms: Terms) -> None:
        """Record the terms of a further loss of the step: the total is that of all losses."""
        others = {name: term for name, term in earlier.items() if name not in terms}
        if others:
            self._names = (*others, *terms)
            self.device_values[tags.TOTAL] = self.terms.total

    def _reduce_over_ranks(self, optimizers: Sequence[Optimizer]) -> None:
        """All-reduce gradients and observed losses to those of the whole batch, so that they agree on every rank."""
        context = self._context
        parameters = trained_parameters(context.tracked.watched, optimizers)
        total = self.device_values.get(tags.TOTAL)
        local = None if total is None else BatchLosses(total=total, terms=self.terms, sample_loss=self._sample_loss)
        whole = reduce_step(context.ranks, self._shard, parameters, local)
        if whole is None:
            return
        # The reduction turns a weight that was a number into a tensor: a name must not have both.
        for name in whole.terms:
            self.host_values.pop(tags.WEIGHT.tag(name), None)
        self._record_terms(whole.terms, whole.total)
        self._verdict = Verdict(whole.total)
        if whole.sample_loss is not None:
            self._sample_loss = whole.sample_loss
            self._record_sample_losses(whole.sample_loss, 0)
