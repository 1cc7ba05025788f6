"""`ForwardCheck`: what the tracked modules get and return, in training and in evaluations."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, TypeAlias, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from fieldwatch.record import tags
from fieldwatch.run.loop_checks.input_samples import SeenInputs, rows_of, sampled
from fieldwatch.run.loop_checks.left_behind import LeftBehind
from fieldwatch.run.loop_checks.modes import depends_on_mode
from fieldwatch.run.loop_checks.output_gradients import TargetCounts, listen, position_spread
from fieldwatch.run.loop_checks.second_forward import ask_again
from fieldwatch.run.loop_checks.seen_samples import SeenSamples
from fieldwatch.run.loop_checks.simple_models import MANY, SimpleModels
from fieldwatch.run.loop_checks.token_order import TokenOrder
from fieldwatch.run.loop_checks.trainable import NAMED, submodules_of

FIRST = 32
"""Number of steps from the first update on at which the batches are measured."""
_MOST_TENSORS = 4
"""Maximum number of arguments that are read."""
_MOST_PARTS = 8
"""Maximum number of modules of a container that are looked at."""
_FEW = 8
"""Number of rows below which the columns of an output are not compared."""
_FINE = 0.2
"""Share of the entries whose last bit in bfloat16 is set, if they were rounded to it."""
_BATCH_NORM = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm)


ForwardSnapshot: TypeAlias = list[tuple[bool, dict[str, Tensor], dict[str, Any]]]
"""By module: whether a forward is due, what was measured at this step, and the state."""


class ForwardCheck:
    """Measures batches by a forward hook on each tracked module; no value is read from the device.

    The hooks return at once except at the first steps, at steps that record details, and in forwards without gradients.
    They neither change nor keep a tensor of the training, and are gone after the run. A copy of a module (``deepcopy``,
    ``pickle``) does not inherit them.
    """

    def __init__(self) -> None:
        self._probes: list[_Probe] = []
        self._handles: list[Any] = []
        self._tokens = _Tokens()
        self._due = False
        self._restored: Mapping[str, Mapping[str, Any]] = {}

    def state_dict(self) -> dict[str, Any]:
        """Return what was measured so far and goes on after a resume, by module."""
        return {probe.name: probe.state_dict() for probe in self._probes}

    def load_state_dict(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        """Restore what was measured; modules that are tracked later get their part then."""
        self._restored = state
        for probe in self._probes:
            if probe.name in state:
                probe.load_state_dict(state[probe.name])

    def open(self, modules: Mapping[str, nn.Module]) -> None:
        """Install the hooks.

        Args:
            modules: tracked modules by name.
        """
        for name, module in _called(modules):
            probe = _Probe(name, self._tokens)
            if name in self._restored:
                probe.load_state_dict(self._restored[name])
            self._probes.append(probe)
            self._handles.append(module.register_forward_hook(cast("Any", probe), with_kwargs=True))

    def close(self) -> None:
        """Remove the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._probes = []

    def begin(self, *, due: bool) -> None:
        """Note that a step begins, and whether its batches are measured."""
        self._tokens.last = None
        # Steps without measurements follow each other: most steps change nothing here.
        if due or self._due:
            self._due = due
            for probe in self._probes:
                probe.due = due

    def snapshot(self) -> ForwardSnapshot | None:
        """Return what a retry of the step must restore; None if no forward is due, so that nothing can change."""
        if not any(probe.due for probe in self._probes):
            return None
        # Measurements replace their tensors and never write to them, so references are enough.
        return [(probe.due, dict(probe.trained), probe.state_dict()) for probe in self._probes]

    def restore(self, snapshot: ForwardSnapshot | None) -> None:
        """Discard what was measured since the snapshot was taken."""
        if snapshot is None:
            return
        for probe, (due, trained, state) in zip(self._probes, snapshot, strict=True):
            probe.due = due
            probe.trained = dict(trained)
            probe.load_state_dict(state)

    def at_update(self) -> dict[str, Tensor]:
        """Return what was measured in the training forwards of the step, by metric name."""
        found: dict[str, Tensor] = {}
        for probe in self._probes:
            if probe.trained:
                found |= probe.trained
                probe.trained = {}
                found |= probe.simple_models()
            probe.after_update = True
            probe.used_train_mode = False
        return found

    def at_record(self) -> dict[str, Tensor]:
        """Return what was measured in forwards without gradients since the update, by metric name."""
        found: dict[str, Tensor] = {}
        for probe in self._probes:
            if probe.evaluated:
                found |= probe.evaluated
                probe.evaluated = {}
        return found

    def answers(self) -> list[dict[str, Any]]:
        """Return what second forwards of evaluations have shown since the last call, by module."""
        found = [probe.facts for probe in self._probes if probe.facts is not None]
        for probe in self._probes:
            probe.facts = None
        return found

    def in_train_mode(self) -> dict[str, list[str]]:
        """Return the modules that computed something without gradients in train mode since the last call.

        Returns:
            Names of their submodules whose output depends on the mode, by name of the tracked module.
        """
        found = {probe.name: probe.dependent_names for probe in self._probes if probe.used_train_mode}
        for probe in self._probes:
            probe.used_train_mode = False
        return found

    def batches_of_one(self) -> dict[str, list[str]]:
        """Return the batch norms that trained on a single sample at this step, by name of the tracked module."""
        return {probe.name: probe.norms_of_one for probe in self._probes if probe.norms_of_one}


def _called(modules: Mapping[str, nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Yield the modules that a loop calls: a container without a forward stands for what it holds."""
    for name, module in modules.items():
        if isinstance(module, nn.ModuleDict | nn.ModuleList):
            children = list(module.named_children())
            # A list of many layers is no set of models.
            if len(children) <= _MOST_PARTS:
                yield from ((f"{name}.{key}", each) for key, each in children)
        else:
            yield name, module


class _Tokens:
    """The last tokens that any module of a step got: the embedding sees them, the head has the outputs."""

    def __init__(self) -> None:
        self.last: Tensor | None = None


class _Probe(LeftBehind):
    """Forward hook of one module."""

    def __init__(self, name: str, tokens: _Tokens) -> None:
        self.name = name
        self._tokens = tokens
        self.due = False
        self.after_update = False
        self.used_train_mode = False
        self.trained: dict[str, Tensor] = {}
        self.evaluated: dict[str, Tensor] = {}
        self.facts: dict[str, Any] | None = None
        self.norms_of_one: list[str] = []
        self.dependent_names: list[str] = []
        self._dependent: list[nn.Module] | None = None
        self._evaluations = 0
        self._weights = torch.empty(0)
        self._counts = TargetCounts()
        self._columns: tuple[Tensor, Tensor] | None = None
        self._made: tuple[Tensor, Tensor] | None = None
        self._seen = SeenInputs()
        self._samples = SeenSamples()
        self._order = TokenOrder()
        self._simple = SimpleModels()
        self._raw = True
        self._attends: bool | None = None
        self._asked = False

    def simple_models(self) -> dict[str, Tensor]:
        """Return how well simple models predict the targets, once there are many samples."""
        return self._simple.measure(self.name, least=MANY)

    def state_dict(self) -> dict[str, Any]:
        """Return what later measurements depend on."""
        return {
            "counts": self._counts.counts,
            "used": self._counts.used,
            "answers": self._counts.answers,
            "columns": None if self._columns is None else list(self._columns),
            "made": None if self._made is None else list(self._made),
            "seen": self._seen.state_dict(),
            "samples": self._samples.state_dict(),
            "order": self._order.state_dict(),
            "simple": self._simple.state_dict(),
            "asked": self._asked,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore it; tensors move to the device of the next measurement."""
        self._counts.counts = state["counts"]
        self._counts.used = state.get("used")  # checkpoints of earlier versions do not have it
        self._counts.answers = state.get("answers")  # the same
        columns = state["columns"]
        self._columns = None if columns is None else (columns[0], columns[1])
        made = state.get("made")  # checkpoints of earlier versions do not have it
        self._made = None if made is None else (made[0], made[1])
        if "seen" in state:  # checkpoints of earlier versions do not have it
            self._seen.load_state_dict(state["seen"])
        if "samples" in state:  # the same
            self._samples.load_state_dict(state["samples"])
        if "order" in state:  # the same
            self._order.load_state_dict(state["order"])
        if "simple" in state:  # the same
            self._simple.load_state_dict(state["simple"])
        self._asked = state["asked"]

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Measure a forward if it is due."""
        # A compiler that traces the module must not trace this. Nested tensors have neither rows nor columns.
        if torch.compiler.is_compiling() or any(_nested((*args, *kwargs.values(), output))):
            return
        if torch.is_grad_enabled():
            self.after_update = False
            if self.due:
                self._train(module, args, kwargs, output)
        else:
            self._evaluate(module, args, kwargs, output)

    def _train(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        arguments = sampled(_tensors((*args, *kwargs.values())))
        inputs = [rows for _, rows in arguments if rows is not None]
        if not inputs:
            return
        # One forward per step: others may get other kinds of batches, such as those of a critic.
        self.due = False
        with torch.no_grad():
            std, mean = torch.std_mean(inputs[0], correction=0)
            self.trained = {tags.INPUT_MEAN.tag(self.name): mean, tags.INPUT_STD.tag(self.name): std}
            self.trained[tags.INPUT_MARK.tag(self.name)] = self._mark(inputs[0])
            count = len(inputs[0])
            if count < 2:
                self.norms_of_one = self._batch_norms(module)
                return
            self.norms_of_one = []
            same_length = [rows for rows in inputs if len(rows) == count]
            spreads = [_spread(rows) for rows in same_length]
            spread = spreads[0] if len(spreads) == 1 else torch.stack(spreads).max()
            self.trained[tags.INPUT_SPREAD.tag(self.name)] = spread
            if len(spreads) > 1:
                self.trained[tags.ARGUMENT_SPREAD.tag(self.name)] = torch.stack(spreads).min()
            outputs = [rows for each in _tensors((output,)) if (rows := rows_of(each)) is not None]
            made = next((rows for rows in outputs if len(rows) == count), None)
            given = arguments[0][0]
            # Features of another module change as it learns, so an evaluation differs from earlier steps.
            self._raw = not given.requires_grad
            self._note_columns(inputs[0])
            self._seen.note(arguments[:_MOST_TENSORS])
            self._order.note(arguments[:_MOST_TENSORS])
            # The rows are those of another argument if the first one cannot be read.
            if given.is_floating_point() and arguments[0][1] is not None:
                self._note_numbers(given, inputs[0])
            if made is not None:
                self.trained[tags.OUTPUT_STD.tag(self.name)] = made.std(correction=0)
                # The mean and spread of a few samples say little of all.
                self._made = torch.std_mean(made, dim=0, correction=0) if count >= _FEW else None
                self._listen(module, args, output)
                first = next(_tensors((output,)))
                if self._raw and given.is_floating_point() and len(given) == len(first):
                    self._simple.listen(inputs[0], first)
                if self._raw and made.shape[1] == 1 and inputs[0].shape[1] > 1:
                    self.trained[tags.COPIED.tag(self.name)] = _correlation(inputs[0], made[:, 0])
                # Relative to the size of the output; 0 for an output of zeros.
                size = made.abs().amax().clamp_min(1e-30)
                self.trained[tags.OUTPUT_SPREAD.tag(self.name)] = _spread(made) / size
                if made.shape[1] > 1:
                    usual = made.mean(dim=0).var(correction=0) / made.var(correction=0).clamp_min(1e-30)
                    self.trained[tags.OUTPUT_SHARE.tag(self.name)] = 1 - usual

    def _note_numbers(self, given: Tensor, rows: Float[Tensor, "rows columns"]) -> None:
        """Note the samples of an input of numbers, and measure its columns and its precision."""
        if self._raw:
            self._samples.note(given)
        # In a replay in double precision, the copy is of another type.
        if given.dtype is rows.dtype is torch.float32:
            self.trained[tags.INPUT_ROUNDED.tag(self.name)] = _rounded(rows)
        if rows.shape[1] > 1 and self._columns is not None:
            self.trained[tags.INPUT_RATIO.tag(self.name)] = _largest_ratio(self._columns[1])

    def _listen(self, module: nn.Module, args: tuple[Any, ...], output: object) -> None:
        """Measure the gradient of the first output, and whether equal tokens have equal outputs."""
        first = next(_tensors((output,)), None)
        if first is None or not first.is_floating_point() or type(first) is not Tensor:
            return
        ids = next((each for each in _tensors(args) if not each.is_floating_point() and each.dim() > 1), None)
        if ids is not None:
            self._tokens.last = ids
        listen(self.name, first, self._tokens.last, self._counts, self._add)
        if ids is not None and self._attention(module):
            spread = position_spread(ids, first)
            if spread is not None:
                self.trained[tags.POSITION_SPREAD.tag(self.name)] = spread

    def _add(self, values: dict[str, Tensor]) -> None:
        self.trained |= values

    def _attention(self, module: nn.Module) -> bool:
        """Return whether a module has attention, by the names of its parts."""
        if self._attends is None:
            self._attends = any("attention" in type(each).__name__.lower() for each in module.modules())
        return self._attends

    def _note_columns(self, rows: Float[Tensor, "rows columns"]) -> None:
        """Note mean and spread of the columns in training, averaged over batches."""
        std, mean = torch.std_mean(rows, dim=0, correction=0)
        known = self._columns
        if known is not None and known[0].device != mean.device:  # restored from a checkpoint
            known = (known[0].to(mean.device, non_blocking=True), known[1].to(mean.device, non_blocking=True))
        if known is None or known[0].shape != mean.shape:
            self._columns = (mean, std)
        else:
            self._columns = (known[0].lerp(mean, 0.1), known[1].lerp(std, 0.1))

    def _mark(self, rows: Float[Tensor, "rows columns"]) -> Float[Tensor, ""]:
        """Return a number that differs for other batches, also if all have the same mean (as one-hot codes have)."""
        entries = rows.reshape(-1)
        if len(self._weights) != len(entries) or self._weights.device != entries.device:
            # Fixed weights without a pattern; no generator of the training is used.
            self._weights = torch.arange(1, len(entries) + 1, device=entries.device).square().sin()
        return torch.dot(entries, self._weights)

    def _evaluate(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        if module.training and not self.used_train_mode:
            self.used_train_mode = any(each.training for each in self._dependent_on_mode(module))
        # Once per evaluation; a loop with such a forward after each update is measured at its first ones only.
        if not self.after_update or self._evaluations >= FIRST:
            return
        self.after_update = False
        self._evaluations += 1
        arguments = sampled(_tensors((*args, *kwargs.values())))
        inputs = [rows for _, rows in arguments if rows is not None]
        if inputs and self._raw:
            std, mean = torch.std_mean(inputs[0], correction=0)
            self.evaluated = {
                tags.EVALUATION_INPUT_MEAN.tag(self.name): mean,
                tags.EVALUATION_INPUT_STD.tag(self.name): std,
            }
            made = next((rows for each in _tensors((output,)) if (rows := rows_of(each)) is not None), None)
            if made is not None:
                self.evaluated[tags.EVALUATION_OUTPUT_STD.tag(self.name)] = made.std(correction=0)
                earlier = self._made
                alike = earlier is not None and earlier[1].shape == made.shape[1:] and len(made) >= _FEW
                if earlier is not None and alike and earlier[1].device == made.device:
                    spread = earlier[0].maximum(earlier[0].mean()).clamp_min(1e-12)
                    apart = ((made.mean(dim=0) - earlier[1]).abs() / spread).mean()
                    self.evaluated[tags.EVALUATION_OUTPUT_SHIFT.tag(self.name)] = apart
            known = self._columns
            alike = known is not None and known[0].shape == inputs[0].shape[1:] and known[0].device == inputs[0].device
            if known is not None and alike:
                # A column that hardly varies counts with the usual spread of the columns.
                spread = known[1].maximum(known[1].mean()).clamp_min(1e-12)
                shift = ((inputs[0].mean(dim=0) - known[0]).abs() / spread).mean()
                self.evaluated[tags.EVALUATION_INPUT_SHIFT.tag(self.name)] = shift
            first, read = arguments[0]
            seen = self._samples.share(first) if first.is_floating_point() and read is not None else None
            if seen is not None:
                self.evaluated[tags.EVALUATION_SEEN.tag(self.name)] = seen
            shift = self._seen.shift(arguments[:_MOST_TENSORS])
            if shift is not None:
                self.evaluated[tags.EVALUATION_ARGUMENT_SHIFT.tag(self.name)] = shift
            self.evaluated |= self._order.differences(self.name, arguments[:_MOST_TENSORS])
            self.evaluated |= self._simple.measure(self.name)
            if not self._asked and not module.training:
                self._asked = True
                self._ask_for_future(module, args, kwargs, output)
                self._ask_again(module, args, kwargs, output)

    def _ask_for_future(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Measure once whether the last token of a sequence changes the outputs before it, by a second forward.

        Only models that map tokens to one output per token and have attention are asked, in eval mode.
        """
        plain = len(args) == 1 and not kwargs and isinstance(args[0], Tensor) and isinstance(output, Tensor)
        if not plain or not self._attention(module):
            return
        ids = cast("Tensor", args[0])[:4]
        before = cast("Tensor", output)[:4]
        if ids.is_floating_point() or ids.dim() != 2 or before.shape[:-1] != ids.shape or ids.shape[1] < 3:
            return
        changed = ids.clone()
        # Another token of the same sequence is a token that the model knows.
        changed[:, -1] = torch.where(ids[:, -1] == ids[:, 0], ids[:, 1], ids[:, 0])
        after = cast("Tensor", module.forward(changed))
        if after.shape == before.shape:
            change = (after[:, :-1] - before[:, :-1]).abs().amax().float()
            self.evaluated[tags.FUTURE_SPREAD.tag(self.name)] = change / before.abs().amax().float().clamp_min(1e-30)

    def _ask_again(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: object) -> None:
        """Note whether the output of an evaluation is random, or depends on the other samples of the batch."""
        found = ask_again(module, args, kwargs, output)
        if found is not None and (found["random"] or found["others"]):
            self.facts = {"item": self.name, **found}

    def _dependent_on_mode(self, module: nn.Module) -> list[nn.Module]:
        if self._dependent is None:
            found = [(path, each) for path, each in submodules_of(module, self.name) if depends_on_mode(each)]
            self._dependent = [each for _, each in found]
            self.dependent_names = [path for path, _ in found[:NAMED]]
        return self._dependent

    def _batch_norms(self, module: nn.Module) -> list[str]:
        """Return the names of the batch norms in train mode."""
        named = submodules_of(module, self.name)
        return [path for path, each in named if isinstance(each, _BATCH_NORM) and each.training][:NAMED]


def _nested(values: Iterable[object]) -> Iterator[bool]:
    """Yield whether each tensor among values is a nested one."""
    return (value.is_nested for value in values if isinstance(value, Tensor))


def _tensors(values: Iterable[object]) -> Iterator[Tensor]:
    """Yield the tensors among values, and in lists and mappings of them."""
    for value in values:
        if isinstance(value, Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from (each for each in cast("Mapping[str, object]", value).values() if isinstance(each, Tensor))
        elif isinstance(value, list | tuple):
            yield from (each for each in cast("Iterable[object]", value) if isinstance(each, Tensor))


def _rounded(rows: Float[Tensor, "rows columns"]) -> Float[Tensor, ""]:
    """Return the share of the entries, whole numbers aside, that are exact in bfloat16.

    Multiples of a power of two, such as the places of a grid, need fewer bits than bfloat16 has, so they do not count.
    """
    bits = rows.contiguous().view(torch.int32)
    broken = rows != rows.round()
    exact = broken & ((bits & 0xFFFF) == 0)
    number = broken.sum().clamp_min(1)
    # The last bit of a rounded number is set in half of the cases.
    fine = (exact & ((bits & 0x10000) != 0)).sum() > _FINE * number
    return torch.where(fine, exact.sum() / number, 0.0)


def _largest_ratio(spreads: Float[Tensor, " columns"]) -> Float[Tensor, ""]:
    """Return the largest spread divided by the geometric mean of those above 0."""
    varies = (spreads > 0).float()
    mean = (spreads.clamp_min(1e-30).log() * varies).sum() / varies.sum().clamp_min(1)
    return spreads.amax() / mean.exp()


def _correlation(rows: Float[Tensor, "rows columns"], values: Float[Tensor, " rows"]) -> Float[Tensor, ""]:
    """Return the largest correlation of values with a column."""
    centered = rows - rows.mean(dim=0)
    values = values - values.mean()
    norms = (centered.square().sum(dim=0) * values.square().sum()).sqrt()
    return ((centered.T @ values).abs() / norms.clamp_min(1e-30)).amax()


def _spread(rows: Float[Tensor, "rows columns"]) -> Float[Tensor, ""]:
    """Return the largest difference of any row from the first."""
    return (rows - rows[:1]).abs().amax()
