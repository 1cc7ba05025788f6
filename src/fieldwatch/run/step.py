"""One step of somebody's training loop, and what it may say about itself."""

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor
from torch.optim import Optimizer

from fieldwatch.guard import (
    SKIPPED,
    Clip,
    Verdict,
    clip_gradients,
    guarded_step,
    rate_tensors,
    state_sizes,
    usable,
)
from fieldwatch.measure import (
    MAX_TAG,
    TOTAL_TAG,
    GradientNorms,
    Heading,
    Terms,
    UpdateSizes,
    attribute_terms,
    gradient_norms,
    largest_gradient,
    parameter_statistics,
)
from fieldwatch.record import Axis, ShowsText
from fieldwatch.run.ranks import Share
from fieldwatch.run.shared_step import SharedVerdict, Whole, share_step, trained

if TYPE_CHECKING:
    from fieldwatch.run.run import Run

Batch = TypeVar("Batch", Tensor, list[Any], tuple[Any, ...])


@dataclass(frozen=True, kw_only=True, slots=True)
class Noted:
    """What a step had been told at some moment.

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
        "_names",
        "_run",
        "_sample_loss",
        "_share",
        "_updated",
        "_verdict",
        "device_values",
        "host_values",
        "index",
        "samples",
    )

    def __init__(self, run: "Run", index: int) -> None:
        self.index = index
        self._run = run
        self._verdict: Verdict | None = None
        self._updated = False
        self.device_values: dict[str, Tensor] = {}
        self.host_values: dict[str, float] = {}
        self.samples: tuple[str, ...] = ()
        self._names: tuple[str, ...] = ()
        self._sample_loss: Tensor | None = None
        self._share: Share | None = None

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
            self.device_values |= attribute_terms(terms, self._run.watched, self.span)

    def own(self, batch: Batch) -> Batch:
        """This rank's part of a batch that every rank has drawn; all of it where there is but one rank.

        Means over the part then count in gradients and losses by its length. Where there are fewer entries than ranks,
        a rank without a part gets the first entry, which counts nothing: a loop needs no case for it.

        Args:
            batch: a tensor, a list or a tuple.

        Raises:
            ValueError: another batch of this step was shared already, of another length.
        """
        return batch if self._run.ranks.alone else batch[self.share(len(batch)).drawn]

    def share(self, whole: int) -> Share:
        """Which entries of a batch of so many are this rank's, for what cannot be cut by :meth:`own`.

        Raises:
            ValueError: another length was shared already in this step.
        """
        share = self._run.ranks.share(whole)
        if self._share not in (None, share):
            raise ValueError(
                f"step {self.index} shared a batch of {self._share.whole if self._share else 0} among the ranks, and "
                f"now one of {whole}: share one batch per step, and cut the rest along with it"
            )
        self._share = share
        return share

    @property
    def terms(self) -> Terms:
        """The loss terms of the whole batch, detached, after :meth:`update`; before it, of this rank's part."""
        recorded = {**self.host_values, **self.device_values}
        component, weight = "Loss/component_", "Loss/weight_"
        return Terms(**{name: (recorded[weight + name], self.device_values[component + name]) for name in self._names})

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
        sample: str | int | Sequence[str | int] | None = None,
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
        ranks, total = self._run.ranks, terms.total
        self._note_terms(terms, total)
        self._name_samples(sample, sample_loss)
        self._verdict = Verdict(total) if ranks.alone else SharedVerdict(total, ranks)
        return self._verdict

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
        watched = self._run.watched
        watched.stepped_by(optimizers)
        self._run.memory.at_update(self.index)
        if not self._run.ranks.alone:
            self._share_with_all(optimizers)
        norms = gradient_norms(watched)
        if norms is None:
            raise ValueError("no parameter has a gradient: call terms.total.backward() before step.update(...)")
        self._record_gradients(norms, optimizers)
        refused = self._refused(norms.total, optimizers)
        self.device_values["Guard/refused"] = refused
        sizes = UpdateSizes(watched) if self.every(self._run.detail_every) else None
        if clip is not None:
            clip_gradients(clip, norms.by_group(), norms.groups, norms.total)
        for optimizer in optimizers:
            guarded_step(optimizer, refused)
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
            _sort_out(values, self.device_values, self.host_values)
            return
        device_values: dict[str, Tensor] = {}
        host_values: dict[str, float] = {}
        _sort_out(values, device_values, host_values)
        where = self.index if position is None else position
        self._run.recording.write(Heading(axis, self.index, where, self._run.seconds()), device_values, host_values)

    def span(self, name: str) -> AbstractContextManager[None]:
        """Measure the time of a block as ``Time/<name>`` in milliseconds."""
        self._run.watchdog.alive(name)
        return self._run.clock.span(name)

    def image(self, name: str, pixels: NDArray[np.uint8], *, position: int | None = None) -> None:
        """Show an image (``[height, width, 3]`` uint8) in every sink that can; at this step, or at an epoch."""
        self._run.recording.image(name, pixels, self.index if position is None else position)

    def histogram(self, name: str, values: Float[Tensor, "..."] | NDArray[Any], *, position: int | None = None) -> None:
        """Show the distribution of some values in every sink that can. Reads the values: not for every step."""
        self._run.recording.histogram(name, values, self.index if position is None else position)

    def text(self, name: str, markdown: str, *, position: int | None = None) -> None:
        """Show a text (Markdown) in every sink that can."""
        self._run.recording.show(ShowsText, "text", name, self.index if position is None else position, markdown)

    @property
    def updated(self) -> bool:
        """Whether :meth:`update` was called."""
        return self._updated

    def noted(self) -> "Noted":
        """Take down what this step has been told so far."""
        return Noted(
            device_values=self.device_values.copy(),
            host_values=self.host_values.copy(),
            samples=self.samples,
            verdict=self._verdict,
            updated=self._updated,
        )

    def back_to(self, noted: "Noted") -> None:
        """Forget what this step was told since then; an update cannot be forgotten."""
        self.device_values, self.host_values = noted.device_values.copy(), noted.host_values.copy()
        self.samples, self._verdict = noted.samples, noted.verdict

    def _name_samples(
        self, sample: str | int | Sequence[str | int] | None, sample_loss: Float[Tensor, "batch"] | None
    ) -> None:
        if sample is None:
            return
        self.samples = (str(sample),) if isinstance(sample, str | int) else tuple(map(str, sample))
        if sample_loss is not None:
            own = self.samples if self._share is None else self.samples[self._share.drawn]
            if sample_loss.shape != (len(own),):
                raise ValueError(
                    f"sample_loss has shape {tuple(sample_loss.shape)} for {len(own)} samples: give one loss per sample"
                )
            self._sample_loss = sample_loss.detach()
            self._note_sample_losses(self._sample_loss, 0 if self._share is None else self._share.first)

    def _note_sample_losses(self, sample_loss: Float[Tensor, "part"], first: int) -> None:
        losses = sample_loss.unbind()
        self.device_values |= {f"Sample/{first + k}/loss": loss for k, loss in enumerate(losses)}

    def _note_terms(self, terms: Terms, total: Float[Tensor, ""]) -> None:
        self._names = tuple(terms)
        self.device_values["Loss/total"] = total.detach()
        weights: dict[str, float | Tensor] = {}
        for name, (weight, value) in terms.items():
            self.device_values["Loss/component_" + name] = value.detach()
            weights["Loss/weight_" + name] = weight
        _sort_out(weights, self.device_values, self.host_values)

    def _share_with_all(self, optimizers: Sequence[Optimizer]) -> None:
        """Make the gradients those of the whole batch, and what was observed too; then it is the same on every rank."""
        run = self._run
        parameters = trained(run.watched, optimizers)
        total = self.device_values.get("Loss/total")
        seen = None if total is None else Whole(total=total, terms=self.terms, sample_loss=self._sample_loss)
        whole = share_step(run.ranks, self._share, parameters, seen)
        if whole is None:
            return
        for name in whole.terms:
            self.host_values.pop("Loss/weight_" + name, None)
        self._note_terms(whole.terms, whole.total)
        self._verdict = Verdict(whole.total)
        if whole.sample_loss is not None:
            self._sample_loss = whole.sample_loss
            self._note_sample_losses(whole.sample_loss, 0)

    def _refused(self, norm: Float[Tensor, ""], optimizers: Sequence[Optimizer]) -> Float[Tensor, ""]:
        """1.0 on the device when nothing may change: loss, gradients or rates not finite, or the step is skipped."""
        for rate in rate_tensors(optimizers):
            norm = norm + (rate - rate)
        refused = (self._verdict or Verdict(norm)).refused(norm)
        if self._run.returning.skips(self.index):
            self.host_values[SKIPPED] = 1.0
        elif usable(optimizers):
            return refused
        return torch.ones_like(refused)

    def _record_gradients(self, norms: GradientNorms, optimizers: Sequence[Optimizer]) -> None:
        values = self.device_values
        values[TOTAL_TAG] = norms.total
        for group, norm in norms.groups.items():
            values[f"Gradients/{group}_norm"] = norm
        if self.every(self._run.detail_every):
            values[MAX_TAG] = largest_gradient(norms.gradients)
            values |= parameter_statistics(self._run.watched)
        if self.index == 0 or self.every(self._run.detail_every):
            values |= state_sizes(self._run.watched.owners().values(), optimizers)
        groups = [group for optimizer in optimizers for group in optimizer.param_groups]
        rates = {f"LearningRate/{group.get('name', i)}": group["lr"] for i, group in enumerate(groups)}
        _sort_out(rates, values, self.host_values)


def _sort_out(
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
