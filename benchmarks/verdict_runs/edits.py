"""Faults that can be planted into the parts of any supervised training."""

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn

from fieldwatch import Step, Terms

from .cases import Train, advised_value
from .supervised import Edit, Parts, Task, training


def shuffle_targets(parts: Parts) -> None:
    """Pair the inputs with the targets of others."""
    parts.targets = parts.targets[torch.randperm(len(parts.targets))]


def rate(value: float) -> Edit:
    """Set the learning rate."""
    return lambda parts: parts.rate(value)


def scaled_rate(factor: float) -> Edit:
    """Multiply the learning rate."""
    return lambda parts: parts.rate(factor * parts.optimizer.param_groups[0]["lr"])


def same_batch(parts: Parts) -> None:
    """Draw the same batch at every step."""
    picked = torch.randint(len(parts.inputs), (parts.batch,))
    parts.draw = lambda _: picked


def few_samples(count: int) -> Edit:
    """Leave the first few samples only."""

    def edit(parts: Parts) -> None:
        parts.inputs = parts.inputs[:count]
        parts.targets = parts.targets[:count]

    return edit


def blank_inputs(parts: Parts) -> None:
    """Give the model inputs without information, as a wrong normalization does."""
    terms = parts.terms
    parts.terms = lambda x, y: terms(torch.zeros_like(x), y)


def from_step(first: int, change: Callable[[Parts], None]) -> Edit:
    """Plant a fault at a step."""

    def edit(parts: Parts) -> None:
        parts.before.append(lambda step: change(parts) if step == first else None)

    return edit


def rate_jumps(first: int, factor: float) -> Edit:
    """Multiply the learning rate at a step."""

    def jump(parts: Parts) -> None:
        for group in parts.optimizer.param_groups:
            group["lr"] *= factor

    return from_step(first, jump)


def rate_grows(first: int, factor: float) -> Edit:
    """Multiply the learning rate at each step from one on, as a schedule with a wrong sign does."""

    def edit(parts: Parts) -> None:
        def grow(step: int) -> None:
            if step >= first:
                for group in parts.optimizer.param_groups:
                    group["lr"] *= factor

        parts.before.append(grow)

    return edit


def never_zeroed(parts: Parts) -> None:
    """Never clear the gradients."""
    parts.clear = lambda: None


def evaluate_by_hand(*, evaluate_mode: bool = True, train_mode: bool = True) -> Edit:
    """Evaluate without ``run.evaluation``, with or without the calls of ``eval`` and ``train``."""

    def edit(parts: Parts) -> None:
        def evaluate(step: Step) -> None:
            if evaluate_mode:
                parts.model.eval()
            with torch.no_grad():
                step.record(parts.measure())
            if train_mode:
                parts.model.train()

        parts.evaluate = evaluate

    return edit


def draws_random_numbers(parts: Parts) -> None:
    """Evaluate by hand on points that the training's own generator draws."""

    def evaluate(step: Step) -> None:
        parts.model.eval()
        torch.rand(17)
        with torch.no_grad():
            step.record(parts.measure())
        parts.model.train()

    parts.evaluate = evaluate


def reseeds(seed: int) -> Edit:
    """Evaluate by hand after a call of ``torch.manual_seed``."""

    def edit(parts: Parts) -> None:
        def evaluate(step: Step) -> None:
            torch.manual_seed(seed)
            parts.model.eval()
            with torch.no_grad():
                step.record(parts.measure())
            parts.model.train()

        parts.evaluate = evaluate

    return edit


def add_term(name: str, weight: float, value: Callable[[Parts, Tensor, Tensor], Tensor]) -> Edit:
    """Add a term to the loss."""

    def edit(parts: Parts) -> None:
        terms = parts.terms
        parts.terms = lambda x, y: terms(x, y) | Terms(**{name: (weight, value(parts, x, y))})

    return edit


def weigh_term(name: str, weight: float) -> Edit:
    """Change the weight of a term."""

    def edit(parts: Parts) -> None:
        terms = parts.terms

        def reweighted(x: Tensor, y: Tensor) -> Terms:
            found = terms(x, y)
            return Terms(**{term: (weight if term == name else old, value) for term, (old, value) in found.items()})

        parts.terms = reweighted

    return edit


def freeze(choose: Callable[[nn.Module], nn.Module]) -> Edit:
    """Switch the gradients of a module off."""

    def edit(parts: Parts) -> None:
        choose(parts.model).requires_grad_(requires_grad=False)

    return edit


def dead_biases(parts: Parts, value: float = -30.0) -> None:
    """Push the hidden units of the last hidden layer below zero, where a ReLU has no gradient."""
    layers = [module for module in parts.model.modules() if isinstance(module, nn.Linear)]
    with torch.no_grad():
        layers[-2].bias.fill_(value)


def keep_graphs(kept: list[Tensor], floats: int) -> Edit:
    """Keep a tensor of every step, as a list of losses with their graphs does."""

    def edit(parts: Parts) -> None:
        parts.after_update.append(lambda step: kept.append(torch.full((floats,), float(step))))

    return edit


def spoil_sample(index: int, change: Callable[[Tensor], Tensor]) -> Edit:
    """Change the target of one sample."""

    def edit(parts: Parts) -> None:
        parts.targets[index] = change(parts.targets[index])

    return edit


def spoil_input(index: int, change: Callable[[Tensor], Tensor]) -> Edit:
    """Change the input of one sample."""

    def edit(parts: Parts) -> None:
        parts.inputs[index] = change(parts.inputs[index])

    return edit


def always(train: Train) -> Callable[[str], Train]:
    """Return the repair that does not depend on the words of the remedy."""
    return lambda _: train


def lower_rate(task: Task, value: float, *edits: Edit) -> Callable[[str], Train]:
    """Return the repair of a learning rate: the advised one, or a tenth of the present one if none is given."""

    def repaired(advice: str) -> Train:
        advised = advised_value(advice, "lr") or advised_value(advice, "learning rate")
        return training(task, *edits, rate(advised or value / 10))

    return repaired


def raise_rate(task: Task, value: float, *edits: Edit) -> Callable[[str], Train]:
    """Return the repair of a learning rate: the advised one, or ten times the present one if none is given."""

    def repaired(advice: str) -> Train:
        advised = advised_value(advice, "lr") or advised_value(advice, "learning rate")
        return training(task, *edits, rate(advised or 10 * value))

    return repaired


def worst_over_median(losses: Tensor) -> float:
    """Return how far the worst sample is above the median one, as a negative figure."""
    return -float(losses.max() / losses.median().clamp_min(1e-12))


def log10(value: float) -> float:
    """Return the decimal logarithm of a positive figure."""
    return math.log10(max(value, 1e-30))


def autocast_half(scale: float = 1.0, weight: float = 1.0) -> Edit:
    """Compute the loss in float16, multiplied by a small weight, and scale it before the backward pass."""

    def edit(parts: Parts) -> None:
        terms = parts.terms

        def half(x: Tensor, y: Tensor) -> Terms:
            with torch.autocast("cpu", dtype=torch.float16):
                found = terms(x, y)
            return Terms(**{name: (weight * old, value) for name, (old, value) in found.items()})

        parts.terms = half
        parts.scale = scale

    return edit


def bfloat16(parts: Parts) -> None:
    """Compute in bfloat16."""
    terms = parts.terms

    def half(x: Tensor, y: Tensor) -> Terms:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return terms(x, y)

    parts.terms = half


def accumulated(count: int, batch: int) -> Edit:
    """Accumulate the gradients of several batches."""

    def edit(parts: Parts) -> None:
        parts.accumulate = count
        parts.batch = batch

    return edit


def noisy_labels(share: float, classes: int) -> Edit:
    """Replace a share of the labels."""

    def edit(parts: Parts) -> None:
        wrong = torch.rand(len(parts.targets)) < share
        parts.targets = torch.where(wrong, torch.randint(classes, (len(parts.targets),)), parts.targets)

    return edit


def half_weights(parts: Parts) -> None:
    """Convert the weights and the inputs to float16."""
    parts.model.half()
    terms = parts.terms
    parts.inputs = parts.inputs.half()
    parts.terms = lambda x, y: terms(x, y.half() if y.is_floating_point() else y)


def without_clip(parts: Parts) -> None:
    """Do not clip the gradients."""
    parts.clip = None


def detach_term(name: str) -> Edit:
    """Detach the value of a term."""

    def edit(parts: Parts) -> None:
        terms = parts.terms

        def detached(x: Tensor, y: Tensor) -> Terms:
            found = terms(x, y).items()
            return Terms(**{term: (w, value.detach() if term == name else value) for term, (w, value) in found})

        parts.terms = detached

    return edit


# Figures of what a loop does, for faults whose harm a short run does not show.


def figure_of_mode(parts: Parts) -> None:
    """Measure whether the model is in training mode at the last step."""
    seen = [0.0]
    parts.after_backward.append(lambda _: seen.__setitem__(0, float(parts.model.training)))
    parts.figure = lambda: seen[0]


def figure_of_evaluation_mode(parts: Parts) -> None:
    """Measure whether the evaluations ran in evaluation mode."""
    measure = parts.measure
    seen = [0.0]

    def watched() -> dict[str, float]:
        seen[0] = float(not parts.model.training)
        return dict(measure())

    parts.measure = watched
    parts.figure = lambda: seen[0]


def figure_of_coverage(parts: Parts) -> None:
    """Measure the fraction of the training samples that were drawn."""
    drawn: set[int] = set()
    draw = parts.draw

    def noted(step: int) -> Tensor:
        picked = torch.randint(len(parts.inputs), (parts.batch,)) if draw is None else draw(step)
        drawn.update(picked.tolist())
        return picked

    parts.draw = noted
    parts.figure = lambda: len(drawn) / len(parts.inputs)


def figure_of_generator(parts: Parts) -> None:
    """Measure whether evaluations leave the global generator as it is."""
    states: list[bool] = []
    before = [torch.get_rng_state()]
    parts.after_update.append(lambda _: before.__setitem__(0, torch.get_rng_state()))
    parts.before.append(lambda step: states.append(step == 0 or torch.equal(before[0], torch.get_rng_state())))
    parts.figure = lambda: float(all(states))


def figure_of_samples(parts: Parts) -> None:
    """Measure how far the worst training sample is above the median one."""
    parts.figure = lambda: worst_over_median(_losses(parts))


def _losses(parts: Parts) -> Tensor:
    assert parts.sample_loss is not None  # noqa: S101  only tasks with named samples have this figure
    return parts.sample_loss(parts.inputs, parts.targets)


def figure_of_memory(kept: list[Tensor]) -> Edit:
    """Measure the MB that the loop keeps."""

    def edit(parts: Parts) -> None:
        parts.figure = lambda: -sum(tensor.numel() * tensor.element_size() for tensor in kept) / 1e6

    return edit


def random_draw(parts: Parts) -> None:
    """Draw batches at random instead of in epochs."""
    parts.draw = None
