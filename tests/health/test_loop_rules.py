"""Rules for what a loop does with its data, its modes and its rates: a planted record each, and a healthy twin."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest

from fieldwatch.health import HealthRule
from fieldwatch.health.rules import (
    batches,
    chance,
    evaluations,
    objectives,
    precision,
    progress,
    rates,
    results,
    rules_in,
    sequences,
    settings,
    terms,
    untrained,
)
from fieldwatch.record import History

STEPS = 640
PLAN = {"kind": "plan", "step": 0, "steps": STEPS}
RNG = np.random.default_rng(5)
FALLING = 2.3 * np.exp(-np.arange(STEPS) / 60) + 0.1
FLAT = np.full(STEPS, 2.3)
DONE = {"val/loss": np.array([1.2, 0.6, 0.3, 0.2])}
SLOW = {"val/error": np.array([26.0, 16.0, 15.0, 18.0])}
MEMORIZED = {"val/loss": np.array([2.2, 2.4, 2.9, 3.5])}


@dataclass(frozen=True, kw_only=True)
class Record:
    """A record: columns of each step, columns recorded more rarely, and events."""

    columns: Mapping[str, np.ndarray]
    rare: Mapping[str, np.ndarray] = field(default_factory=dict)
    events: Sequence[Mapping[str, object]] = ()

    def history(self, make) -> History:
        spaced = [({name: values}, {"stride": STEPS // len(values)}) for name, values in self.rare.items()]
        return make((dict(self.columns), {}), *spaced, events=[PLAN, *self.events])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A rule with a faulty and a healthy record, and the severity, subject and words of its finding."""

    rule: HealthRule
    fault: Record
    healthy: Record
    severity: str
    subject: str
    words: Sequence[str]


def noise(count=40, level=1.0):
    return level * (1 + 0.2 * RNG.standard_normal(count))


def forward(loss=FALLING, results=DONE, **measured):
    return Record(columns={"Loss/total": loss}, rare={f"Forward/net_{k}": v for k, v in measured.items()} | results)


def answered(*, output, shift=0.2, given=1.0, **others):
    """Outputs of deviation 1 in training and of another one in evaluations."""
    return forward(
        results={"val/sway": np.array([0.6, 1.2, 4.4, 5.0])},
        input_std=np.ones(40),
        evaluation_input_std=np.full(4, given),
        output_std=np.ones(40),
        evaluation_output_std=np.full(4, output),
        evaluation_output_shift=np.full(4, shift),
        **others,
    )


def contrastive(terms, results=None):
    columns = {f"Loss/component_{name}": values for name, values in terms.items()}
    events = [{"kind": "chance_level", "step": 0, "term": name, **BORN} for name in terms]
    return Record(columns={"Loss/total": sum(terms.values()), **columns}, rare=results or {}, events=events)


def settled(kind, results=DONE, loss=FALLING, **facts):
    return Record(columns={"Loss/total": loss}, rare=results, events=[{"kind": kind, "step": 64, **facts}])


def floored(loss):
    columns = {"Loss/total": loss, "Loss/component_ctc": loss}
    event = {"kind": "loss_floor", "step": 0, "term": "ctc", "operation": "CTC loss"}
    return Record(columns=columns, events=[event])


def collapsing(last, loss):
    spreads = np.concatenate([np.full(10, 0.2), np.full(30, last)])
    return forward(loss, STILL, output_std=spreads, output_share=np.full(40, 0.8), output_spread=np.full(40, 0.9))


def growing(deviations, loss):
    return forward(loss, {}, output_std=deviations)


def prior(likelihood):
    divergence = np.linspace(6000, 2000, STEPS)
    columns = {"Loss/weighted_likelihood": likelihood, "Loss/weighted_divergence": divergence}
    return Record(columns={"Loss/total": likelihood + divergence, **columns})


def with_errors(worst):
    values = {f"{at:03d}": 10.0 + 0.1 * at for at in range(8)} | {"006": worst}
    event = {"kind": "sample_scores", "step": STEPS - 1, "metric": "Eval/mae", "better": "lower", "values": values}
    return Record(columns={"Loss/total": FALLING}, events=[event])


def harder():
    return np.concatenate([[0.02, 0.009, 0.007, 0.009], np.full(STEPS - 4, 0.06)])


def with_rates(rate, loss=FALLING, **rare):
    named = {name.replace("__", "/"): values for name, values in rare.items()}
    return Record(columns={"Loss/total": loss, "LearningRate/0": rate}, rare=named)


def bounded(low, high):
    """A loss of squares behind a tanh, with targets from ``low`` to ``high``."""
    parts = {"error_square": FALLING[::16], "target_low": np.full(40, low), "target_high": np.full(40, high)}
    rare = {f"Forward/net_{name}": values for name, values in parts.items()}
    event = {"kind": "loss_form", "step": 0, "term": "mse", "form": "bounded", "operation": "tanh"}
    return Record(columns={"Loss/total": FALLING}, rare=rare, events=[event])


def logits(loss=FALLING, results=DONE, **measured):
    """What is measured at the outputs of a classifier."""
    usual = {"class_sum": 1e-8, "hits": 0.5, "implied_loss": 1.0, "target_entropy": 2.0, "batch_entropy": 1.9}
    return forward(loss, results, **{name: np.full(40, value) for name, value in usual.items()} | measured)


def answers(results, spread=1e-6, **measured):
    """What is measured at the outputs of a model that says yes or no."""
    usual = {"binary_hits": 0.9, "binary_share": 0.1, "binary_overlap": 0.8, "binary_loss": 0.2, "binary_guess": 0.33}
    columns = {name: np.full(40, value) for name, value in usual.items()} | measured
    return forward(results=results, binary_spread=np.full(40, spread), **columns)


def rounded(loss, ratio):
    """Parameters of bfloat16 with updates of a size."""
    event = {"kind": "half_parameters", "step": 0, "dtype": "bfloat16", **EVERY}
    rare = {"Gradients/update_ratio_net": np.full(8, ratio)}
    return Record(columns={"Loss/total": loss}, rare=rare, events=[event])


def two_terms(kind):
    """A term that is learned, and another one, with the noise of batches."""
    box = 2.0 * np.exp(-np.arange(STEPS) / 20) + 0.02
    kind = kind + 0.01 * np.sin(np.arange(STEPS) * 1.7)
    columns = {"Loss/weighted_box": box, "Loss/weighted_kind": kind, "Loss/total": box + kind}
    return Record(columns=columns)


def skipping(*steps):
    """A scaler that skips the updates of some steps."""
    skipped = np.zeros(STEPS)
    skipped[list(steps)] = 1
    return Record(columns={"Guard/scaler_skipped": skipped, "Guard/loss_scale": np.geomspace(2**16, 1, STEPS)})


SCALED = {"input_mean": np.zeros(40), "input_std": np.full(40, 5.0)}
STILL = {"Eval/modes": np.full(4, 0.2)}
BORN = {"operation": "cross-entropy", "outcomes": 64, "chance": float(np.log(64))}
EVERY = {"names": ["net.head.weight"], "count": 1}
MODE = {"item": "net", "modules": ["net.drop"]}
DIVERGING = {"term": "distill", "form": "no_log", "operation": "softmax", "loss": "divergence"}
DECAY = {"group": "0", "optimizer": "AdamW", "decoupled": True}
CUT = np.where(np.arange(STEPS) < 30, 0.1, 1e-7)

CASES = [
    Case(
        rule=batches.ConstantInput(),
        fault=forward(input_spread=np.zeros(40)),
        healthy=forward(input_spread=np.where(np.arange(40) % 5, 0.0, 1.0)),
        severity="warning",
        subject="net",
        words=("no information", "no diversity", "latents"),
    ),
    Case(
        rule=batches.SameBatch(),
        fault=forward(results=MEMORIZED, input_mark=np.full(40, 1.25)),
        healthy=forward(results=MEMORIZED, input_mark=noise()),
        severity="warning",
        subject="net",
        words=("same batch", "40 measured steps", "loader"),
    ),
    Case(
        rule=batches.ConstantOutput(),
        fault=forward(input_spread=noise(), output_spread=np.full(40, 1e-8)),
        healthy=forward(input_spread=noise(), output_spread=np.where(np.arange(40) < 3, 0.0, 1.0)),
        severity="warning",
        subject="net",
        words=("dead or saturated", "ReLU"),
    ),
    Case(
        rule=batches.InputIgnored(),
        fault=forward(output_share=np.geomspace(0.7, 0.01, 40)),
        healthy=forward(output_share=np.geomspace(0.02, 0.04, 40)),
        severity="warning",
        subject="net",
        words=("between samples", "constant prediction", "labels"),
    ),
    Case(
        rule=evaluations.EvaluationInput(),
        fault=forward(
            results=MEMORIZED,
            input_mean=noise(),
            input_std=noise(),
            evaluation_input_mean=np.full(4, 120.0),
            evaluation_input_std=np.full(4, 60.0),
        ),
        healthy=forward(
            results=MEMORIZED,
            input_mean=noise(),
            input_std=noise(),
            evaluation_input_mean=np.full(4, 1.5),
            evaluation_input_std=np.full(4, 0.8),
        ),
        severity="warning",
        subject="net",
        words=("normalized differently", "mean 120", "same normalization"),
    ),
    Case(
        rule=evaluations.EvaluationInput(),
        fault=forward(evaluation_input_mean=noise(4), evaluation_padding=np.full(4, 0.6)),
        healthy=forward(evaluation_input_mean=noise(4), evaluation_padding=np.array([0.0, 0.1, 0.5, 0.0])),
        severity="warning",
        subject="net",
        words=("60%", "other side", "padding_side"),
    ),
    Case(
        rule=evaluations.EvaluationInput(),
        fault=forward(evaluation_input_mean=noise(4), evaluation_start=np.full(4, 1.0)),
        healthy=forward(evaluation_input_mean=noise(4), evaluation_start=np.zeros(4)),
        severity="warning",
        subject="net",
        words=("100%", "do not begin with the token", "start token"),
    ),
    Case(
        rule=evaluations.EvaluationOutput(),
        fault=answered(output=0.3),
        healthy=answered(output=0.8),
        severity="warning",
        subject="net",
        words=("deviation of 0.3 in evaluations", "training and evaluation differ", "batch norms"),
    ),
    Case(
        rule=evaluations.EvaluationOutput(),
        fault=answered(output=1.0, shift=2.0),
        # Inputs of another scale have other outputs, which another rule reports.
        healthy=answered(output=1.0, shift=2.0, given=3.0),
        severity="warning",
        subject="net",
        words=("other means in evaluations", "by 2 standard deviations", "running statistics"),
    ),
    Case(
        rule=batches.BatchOfOne(),
        fault=settled("batch_of_one", MEMORIZED, updates=32, **MODE),
        healthy=settled("batch_of_one", MEMORIZED, updates=8, **MODE),
        severity="warning",
        subject="net",
        words=("one sample", "group, layer or instance norm"),
    ),
    Case(
        rule=evaluations.EvaluatedInTrainMode(),
        fault=settled("evaluation_mode", evaluations=2, updates=60, **MODE),
        healthy=settled("evaluation_mode", evaluations=32, updates=60, **MODE),
        severity="warning",
        subject="net",
        words=("train mode", "net.drop", "model.eval()"),
    ),
    Case(
        rule=evaluations.EvaluationDraws(),
        fault=settled("random_numbers", evaluations=2, repeated=1, updates=60),
        healthy=settled("random_numbers", evaluations=32, repeated=0, updates=60),
        severity="warning",
        subject="torch",
        words=("random", "a state it had before", "run.evaluation"),
    ),
    Case(
        rule=precision.HalfUnderflow(),
        fault=Record(columns={"Guard/half_gradient": np.full(STEPS, 0.4), "Guard/zero_gradient": np.full(STEPS, 0.9)}),
        healthy=Record(columns={"Guard/half_gradient": np.full(STEPS, 0.02)}),
        severity="warning",
        subject="Gradients/total_norm",
        words=("float16", "90%", "GradScaler"),
    ),
    Case(
        rule=precision.HalfParameters(),
        fault=settled("half_parameters", **EVERY),
        healthy=settled("other"),
        severity="warning",
        subject="net.head.weight",
        words=("float16", "float32"),
    ),
    Case(
        rule=untrained.NeverTrained(),
        fault=settled("without_gradient", updates=32, share=0.4, called=True, **EVERY),
        healthy=settled("without_gradient", updates=8, share=0.4, called=True, **EVERY),
        severity="warning",
        subject="net.head.weight",
        words=("no gradient", "40%", "detach()"),
    ),
    Case(
        rule=untrained.FrozenOutput(),
        fault=settled("frozen_output", **EVERY),
        healthy=settled("other"),
        severity="warning",
        subject="net.head.weight",
        words=("requires_grad=False", "requires_grad_(True)"),
    ),
    Case(
        rule=untrained.StaleAverage(),
        fault=forward(average_way=np.linspace(0, 0.05, 40), evaluation_input_mean=np.ones(4)),
        healthy=forward(average_way=np.linspace(0, 0.9, 40), evaluation_input_mean=np.ones(4)),
        severity="warning",
        subject="net",
        words=("5%", "decay"),
    ),
    Case(
        rule=untrained.DecayTooHigh(),
        fault=Record(
            columns={"Loss/total": FLAT, "LearningRate/0": np.full(STEPS, 0.01)},
            events=[{"kind": "weight_decay", "step": 0, "weight_decay": 2.0, **DECAY}],
        ),
        healthy=Record(
            columns={"Loss/total": FLAT, "LearningRate/0": np.full(STEPS, 0.01)},
            events=[{"kind": "weight_decay", "step": 0, "weight_decay": 0.05, **DECAY}],
        ),
        severity="warning",
        subject="0",
        words=("weight decay 2", "0.02", "weight_decay"),
    ),
    Case(
        rule=rates.RateEndsEarly(),
        fault=with_rates(CUT),
        healthy=with_rates(0.05 * (1 + np.cos(np.linspace(0, np.pi, STEPS)))),
        severity="warning",
        subject="",
        words=("since step 30", "95%", "scheduler.step()"),
    ),
    Case(
        rule=rates.AlwaysClipped(),
        fault=Record(columns={"Loss/total": FLAT, "Gradients/clip_scale": np.full(STEPS, 0.004)}),
        healthy=Record(columns={"Loss/total": FLAT, "Gradients/clip_scale": np.full(STEPS, 0.4)}),
        severity="warning",
        subject="Gradients/clip_scale",
        words=("0.004", "limit"),
    ),
    Case(
        rule=rates.GroupTooSlow(),
        fault=with_rates(
            np.full(STEPS, 0.1),
            FLAT,
            Gradients__update_ratio_maker=np.full(10, 1e-3),
            Gradients__update_ratio_critic=np.full(10, 1e-6),
        ),
        healthy=with_rates(
            np.full(STEPS, 0.1),
            FLAT,
            Gradients__update_ratio_maker=np.full(10, 1e-3),
            Gradients__update_ratio_critic=np.full(10, 2e-4),
        ),
        severity="warning",
        subject="critic",
        words=("1e-06", "'maker'", "learning rate"),
    ),
    Case(
        rule=rates.RateStartsLate(),
        fault=with_rates(0.1 * np.linspace(0, 1, STEPS) ** 4, FLAT),
        healthy=with_rates(0.1 * np.minimum(np.arange(1, STEPS + 1) / 30, 1.0), FLAT),
        severity="warning",
        subject="",
        words=("first 6", "warm-up", "scheduler.step()"),
    ),
    Case(
        rule=batches.ConstantArgument(),
        fault=forward(results=MEMORIZED, argument_spread=np.zeros(40)),
        healthy=forward(results=MEMORIZED, argument_spread=np.ones(40)),
        severity="warning",
        subject="net",
        words=("one of the inputs", "times"),
    ),
    Case(
        rule=batches.InputScale(),
        fault=forward(results=MEMORIZED, input_ratio=np.full(40, 4e3), **SCALED),
        healthy=forward(results=MEMORIZED, input_ratio=np.full(40, 3.0), **SCALED),
        severity="warning",
        subject="net",
        words=("4,000 times larger", "Normalize"),
    ),
    Case(
        rule=batches.InputScale(),
        # The error falls, but by less than a half.
        fault=forward(results=SLOW, input_ratio=np.full(40, 4e3), **SCALED),
        healthy=forward(results=SLOW, input_ratio=np.full(40, 3.0), **SCALED),
        severity="warning",
        subject="net",
        words=("4,000 times larger", "Normalize"),
    ),
    Case(
        rule=batches.NoDiversity(),
        fault=forward(results=STILL, output_share=np.full(40, 1e-4), output_spread=np.full(40, 0.02)),
        healthy=forward(results=STILL, output_share=np.full(40, 0.4), output_spread=np.full(40, 0.9)),
        severity="warning",
        subject="net",
        words=("collapse", "diversity", "latents"),
    ),
    Case(
        rule=untrained.CopyNeverUpdated(),
        fault=forward(results=MEMORIZED, average_way=np.zeros(40)),
        healthy=forward(results=MEMORIZED, average_way=np.linspace(0, 0.3, 40)),
        severity="warning",
        subject="net",
        words=("has not changed", "target network"),
    ),
    Case(
        rule=objectives.LossForm(),
        fault=settled("loss_form", term="nll", form="negated"),
        healthy=settled("loss_form", term="mse", form="bounded", operation="sigmoid"),
        severity="warning",
        subject="nll",
        words=("sign is wrong", "minus sign"),
    ),
    Case(
        rule=objectives.LossForm(),
        fault=Record(
            columns={"Loss/total": FALLING}, rare=DONE, events=[{"kind": "loss_form", "step": 0, **DIVERGING}]
        ),
        healthy=settled("loss_form", term="distill", form="bounded", operation="sigmoid"),
        severity="warning",
        subject="distill",
        words=("kl_div", "of softmax", "log_softmax"),
    ),
    Case(
        rule=objectives.NegativeLoss(),
        fault=floored(8 - np.linspace(0, 9, STEPS)),
        healthy=floored(8 * np.linspace(1, 0, STEPS) ** 3 - 1e-9),
        severity="error",
        subject="ctc",
        words=("never negative", "targets", "0 to 255"),
    ),
    Case(
        rule=objectives.OutputRange(),
        fault=bounded(low=-4.0, high=5.0),
        healthy=bounded(low=-1.0, high=1.1),
        severity="warning",
        subject="net",
        words=("tanh", "-1 to 1", "-4 to 5", "activation"),
    ),
    Case(
        rule=objectives.SamplesIgnored(),
        fault=forward(results=MEMORIZED, live_share=np.full(40, 1 / 32)),
        healthy=forward(results=MEMORIZED, live_share=np.full(40, 0.8)),
        severity="warning",
        subject="net",
        words=("3%", "mask"),
    ),
    Case(
        rule=settings.EqualUnits(),
        fault=forward(unit_spread=np.zeros(40)),
        healthy=forward(unit_spread=np.linspace(0, 1, 40)),
        severity="warning",
        subject="net",
        words=("same weights", "random"),
    ),
    Case(
        rule=settings.OptimizerRenewed(),
        fault=settled("optimizer_renewed", renewals=64, updates=64, optimizer="Adam"),
        healthy=settled("optimizer_renewed", renewals=16, updates=600, optimizer="Adam"),
        severity="warning",
        subject="Adam",
        words=("64 times", "before the loop"),
    ),
    Case(
        rule=objectives.NormalizedOverBatch(),
        fault=forward(loss=FLAT, class_sum=np.full(40, 0.1), batch_sum=np.full(40, 1e-7)),
        healthy=forward(loss=FLAT, class_sum=np.full(40, 1e-8), batch_sum=np.full(40, 1e-7)),
        severity="warning",
        subject="net",
        words=("over the batch", "axis"),
    ),
    Case(
        rule=chance.ChanceLevel(),
        fault=logits(loss=FLAT, results={}, implied_loss=FLAT[::16], target_entropy=np.full(40, 2.3)),
        healthy=logits(results={}, implied_loss=FALLING[::16], target_entropy=np.full(40, 2.3)),
        severity="warning",
        subject="net",
        words=("constant prediction", "entropy", "targets"),
    ),
    Case(
        rule=chance.ChanceLevel(),
        fault=contrastive({"match": np.geomspace(7, np.log(64), STEPS)}),
        healthy=contrastive({"match": np.geomspace(7, 1.5, STEPS)}),
        severity="warning",
        subject="match",
        words=("64 outcomes", "4.159", "belong together"),
    ),
    Case(
        rule=chance.ChanceLevel(),
        fault=contrastive({"match": np.full(STEPS, 4.2), "text": np.full(STEPS, 4.2)}),
        # An adversary is at chance level on purpose.
        healthy=contrastive({"match": np.geomspace(7, 0.5, STEPS), "domain": np.full(STEPS, 4.2)}),
        severity="warning",
        subject="match",
        words=("64 outcomes", "4.159", "belong together"),
    ),
    Case(
        rule=chance.ChanceLevel(),
        fault=contrastive({"match": np.full(STEPS, 4.2)}, {"val/auc": np.array([0.5, 0.52, 0.49, 0.53])}),
        # Noise among the targets keeps the loss high; the evaluation shows what was learned.
        healthy=contrastive({"match": np.full(STEPS, 4.2)}, {"val/auc": np.array([0.62, 0.66, 0.7, 0.69])}),
        severity="warning",
        subject="match",
        words=("64 outcomes", "4.159", "belong together"),
    ),
    Case(
        rule=chance.InitialLoss(),
        fault=logits(loss=FLAT, implied_loss=np.geomspace(140, 2, 40), target_entropy=np.full(40, 1.4)),
        healthy=logits(loss=FLAT, implied_loss=np.geomspace(3, 2, 40), target_entropy=np.full(40, 1.4)),
        severity="warning",
        subject="net",
        words=("100 times", "initial weights"),
    ),
    Case(
        rule=objectives.UnmixedBatches(),
        fault=logits(results=MEMORIZED, batch_entropy=np.full(40, 0.2), target_entropy=np.full(40, 2.0)),
        healthy=logits(results=MEMORIZED, batch_entropy=np.full(40, 1.8), target_entropy=np.full(40, 2.0)),
        severity="warning",
        subject="net",
        words=("sorted by class", "shuffle=True"),
    ),
    Case(
        rule=chance.OutputsGrow(),
        fault=forward(2.3 + np.arange(STEPS) / 100, results=MEMORIZED, output_std=np.geomspace(0.1, 1e3, 40)),
        # What is learned by heart grows, too, while its loss falls.
        healthy=forward(results=MEMORIZED, output_std=np.geomspace(0.1, 1e3, 40)),
        severity="warning",
        subject="net",
        words=("diverge", "discount"),
    ),
    Case(
        rule=sequences.PaddingCounts(),
        fault=logits(blank_share=np.full(40, 0.8), hits=np.full(40, 0.84)),
        healthy=logits(blank_share=np.full(40, 0.1), hits=np.full(40, 0.84)),
        severity="warning",
        subject="net",
        words=("80%", "20% are right", "ignore_index"),
    ),
    Case(
        rule=sequences.PositionIgnored(),
        fault=forward(position_spread=np.zeros(40), hits=np.full(40, 0.3)),
        healthy=forward(position_spread=np.full(40, 0.4), hits=np.full(40, 0.3)),
        severity="warning",
        subject="net",
        words=("equal tokens", "positional encoding"),
    ),
    Case(
        rule=sequences.FutureVisible(),
        fault=forward(future_spread=np.full(1, 0.8), next_share=np.ones(40)),
        healthy=forward(future_spread=np.zeros(1), next_share=np.ones(40)),
        severity="warning",
        subject="net",
        words=("later tokens", "causal mask"),
    ),
    Case(
        rule=sequences.TargetsUnshifted(),
        fault=logits(same_share=np.ones(40)),
        healthy=logits(same_share=np.full(40, 0.2)),
        severity="warning",
        subject="net",
        words=("same places", "Shift the targets"),
    ),
    Case(
        rule=sequences.TargetsUnshifted(),
        fault=logits(same_share=np.ones(40), future_spread=np.zeros(1)),
        healthy=logits(same_share=np.ones(40), future_spread=np.full(1, 0.5)),  # an autoencoder
        severity="warning",
        subject="net",
        words=("same places", "Shift the targets"),
    ),
    Case(
        rule=objectives.InvertedWeights(),
        fault=logits(weight_slope=np.full(40, 1.0)),
        # Weights of inverse frequency, and a focal loss, go the other way.
        healthy=logits(weight_slope=np.linspace(-1.0, 0.1, 40)),
        severity="warning",
        subject="net",
        words=("to the power of 1", "rare ones", "Invert the weights"),
    ),
    Case(
        rule=objectives.TargetAmongInputs(),
        fault=forward(results=MEMORIZED, copied_input=np.minimum(np.linspace(0.5, 1.2, 40), 1.0)),
        healthy=forward(results=MEMORIZED, copied_input=np.full(40, 0.8)),
        severity="warning",
        subject="net",
        words=("one column", "leak", "feature"),
    ),
    Case(
        rule=objectives.TargetAmongInputs(),
        # A result of unknown direction says nothing; outputs that are others in evaluations do.
        fault=answered(output=0.1, copied_input=np.full(40, 0.999)),
        healthy=answered(output=1.0, copied_input=np.full(40, 0.999)),
        severity="warning",
        subject="net",
        words=("one column", "leak", "feature"),
    ),
    Case(
        rule=objectives.TargetAmongInputs(),
        # Held-out data leak as well, so that their result is good.
        fault=forward(results=DONE, targets_given=np.ones(1)),
        healthy=forward(results=DONE, targets_given=np.full(1, 0.5)),
        severity="warning",
        subject="net",
        words=("are its targets", "nothing to predict", "window"),
    ),
    Case(
        rule=chance.TrainingGap(),
        fault=logits(results={"val/right": np.full(4, 0.1)}, hits=np.linspace(0.1, 1, 40)),
        healthy=logits(results={"val/right": np.full(4, 0.9)}, hits=np.linspace(0.1, 1, 40)),
        severity="warning",
        subject="val/right",
        words=("held-out", "0.1", "labels"),
    ),
    Case(
        rule=chance.BarelyLearned(),
        fault=logits(results={"val/right": np.array([0.2, 0.26, 0.3, 0.3])}, target_share=np.full(40, 0.2)),
        healthy=logits(results={"val/right": np.array([0.2, 0.4, 0.5, 0.5])}, target_share=np.full(40, 0.2)),
        severity="warning",
        subject="val/right",
        words=("hardly better than the 0.2 of a guess", "12% of the way", "zero_grad"),
    ),
    Case(
        rule=settings.OddSetting(),
        fault=settled("odd_setting", MEMORIZED, where="Adam", setting="eps", value=1.0, usual="1e-8"),
        healthy=settled("other", MEMORIZED),
        severity="warning",
        subject="Adam eps",
        words=("eps = 1", "1e-8"),
    ),
    Case(
        rule=settings.OddSetting(),
        fault=settled("odd_setting", where="net.3", setting="dropout", value=0.95, usual="0.1 to 0.5"),
        healthy=settled("other", MEMORIZED),
        severity="warning",
        subject="net.3 dropout",
        words=("dropout = 0.95", "0.1 to 0.5"),
    ),
    Case(
        rule=settings.FrozenBody(),
        fault=settled("frozen_share", share=0.15, in_optimizer=False, random=1.0, **EVERY),
        healthy=settled("frozen_share", share=0.15, in_optimizer=False, random=0.0, **EVERY),
        severity="warning",
        subject="net.head.weight",
        words=("15%", "random numbers", "requires_grad_(True)"),
    ),
    Case(
        rule=settings.FrozenBody(),
        fault=settled("frozen_share", MEMORIZED, share=0.9, in_optimizer=True, **EVERY),
        healthy=settled("frozen_share", MEMORIZED, share=0.1, in_optimizer=False, **EVERY),
        severity="warning",
        subject="net.head.weight",
        words=("90%", "requires_grad=False", "requires_grad_(True)"),
    ),
    Case(
        rule=objectives.UnboundedLoss(),
        fault=Record(columns={"Loss/total": 1 - 200 * np.linspace(0, 1, STEPS) ** 6}),
        healthy=Record(columns={"Loss/total": 1 - 5 * (1 - np.exp(-np.arange(STEPS) / 60))}),
        severity="warning",
        subject="Loss/total",
        words=("no lower bound", "sign"),
    ),
    Case(
        rule=precision.ScalerSkips(),
        fault=skipping(*range(0, STEPS, 3)),
        # It searches for its factor, and tries a larger one now and then.
        healthy=skipping(*range(16), 300, 560),
        severity="warning",
        subject="Guard/scaler_skipped",
        words=("skipped 206 of the last 616", "bfloat16"),
    ),
]
# Other forms of what these and other rules look for.
VARIANTS = [
    Case(
        rule=precision.HalfParameters(),
        fault=rounded(FLAT, 2e-4),
        healthy=settled("other"),
        severity="warning",
        subject="net.head.weight",
        words=("bfloat16", "rounding", "float32"),
    ),
    Case(
        rule=chance.TrainingGap(),
        fault=answers({"val/iou": np.array([0.1, 0.2, 0.15, 0.1])}),
        healthy=answers({"val/iou": np.array([0.1, 0.4, 0.6, 0.7])}),
        severity="warning",
        subject="val/iou",
        words=("0.8", "held-out", "labels"),
    ),
    Case(
        rule=chance.TrainingGap(),
        fault=answers({"val/f1": np.full(4, 0.3)}, binary_share=np.full(40, 0.2)),
        # A sampler that balances classes: the same answers score less among few that are yes.
        healthy=answers({"val/f1": np.full(4, 0.5)}, binary_share=np.full(40, 0.5)),
        severity="warning",
        subject="val/f1",
        words=("0.89", "held-out", "labels"),
    ),
    Case(
        rule=chance.ChanceLevel(),
        fault=answers({}, binary_loss=np.full(40, 0.33)),
        # Only the gradient of a binary cross-entropy shows its targets.
        healthy=answers({}, spread=0.3, binary_loss=np.full(40, 0.33)),
        severity="warning",
        subject="net",
        words=("constant prediction", "entropy", "targets"),
    ),
    Case(
        rule=rates.RateStartsLate(),
        fault=with_rates(np.linspace(1e-5, 1e-3, STEPS), FLAT),
        healthy=with_rates(np.full(STEPS, 1e-3), FLAT),
        severity="warning",
        subject="",
        words=("still rises", "warm-up"),
    ),
    Case(
        rule=rates.RateEndsEarly(),
        fault=with_rates(0.1 * 0.5 ** (np.arange(STEPS) // 60), FLAT),
        healthy=with_rates(0.1 * 0.5 ** (np.arange(STEPS) // 60), FALLING),
        severity="warning",
        subject="",
        words=("stood still", "lowered too early", "ReduceLROnPlateau"),
    ),
    Case(
        rule=evaluations.EvaluationInput(),
        fault=forward(results=MEMORIZED, evaluation_input_mean=noise(4), evaluation_argument_shift=np.full(4, 8.0)),
        healthy=forward(results=MEMORIZED, evaluation_input_mean=noise(4), evaluation_argument_shift=np.full(4, 1.7)),
        severity="warning",
        subject="net",
        words=("times, conditions, tokens", "tokenizer"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=forward(
            results={"val/iou": np.array([0.3, 0.25, 0.2, 0.2]), "val/right": np.array([0.2, 0.4, 0.6, 0.7])}
        ),
        # What a result loses in one respect may be meant.
        healthy=forward(
            results={"val/recall": np.array([0.3, 0.25, 0.2, 0.2]), "val/right": np.array([0.2, 0.4, 0.6, 0.7])}
        ),
        severity="warning",
        subject="val/iou",
        words=("never better", "not what is evaluated", "format"),
    ),
    Case(
        rule=results.WorseThanNothing(),
        # An evaluation is known by its rarity too, whatever it is called.
        fault=forward(results={"Forecast/explained": np.array([-0.1, -0.5, -1.0, -1.2])}),
        healthy=forward(results={"Forecast/explained": np.array([-0.1, 0.5, 0.6, 0.7])}),
        severity="error",
        subject="Forecast/explained",
        words=("trivial baseline", "targets"),
    ),
    Case(
        rule=terms.TermNotLearned(),
        fault=two_terms(np.full(STEPS, 0.7)),
        # It is learned late: it certainly falls in the second half.
        healthy=two_terms(np.linspace(0.72, 0.62, STEPS)),
        severity="warning",
        subject="kind",
        words=("no gradient", "detach"),
    ),
    Case(
        rule=progress.NoProgress(),
        # Nobody knows whether "kept" is better high or low: it stands still, and the loss falls to nothing.
        fault=forward(results={"val/kept": np.array([0.31, 0.29, 0.3, 0.3, 0.29])}),
        healthy=forward(results={"val/kept": np.array([0.31, 0.4, 0.5, 0.55, 0.56])}),
        severity="warning",
        subject="val/kept",
        words=("not improved", "fell from", "targets"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=forward(results={"val/gain": np.array([-22.5, -22.4, -22.2, -22.2, -22.3])}),
        # Reached before the first evaluation, when less than a third of the loss was left.
        healthy=Record(
            columns={"Loss/total": np.where(np.arange(STEPS) < 40, 2.3, FALLING)},
            rare={"val/gain": np.array([-22.5, -14.0, -13.9, -13.9, -13.9])},
        ),
        severity="warning",
        subject="val/gain",
        words=("not improved", "held-out data do not show", "format"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=forward(results={"val/error": np.array([0.48, 0.50, 0.49, 0.50, 0.51])}),
        healthy=forward(results={"val/error": np.array([0.48, 0.46, 0.44, 0.44, 0.43])}),
        severity="warning",
        subject="val/error",
        words=("never better", "targets"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=forward(results={"val/kept": np.array([0.05, 0.04, 0.04, 0.02, 0.01])}, loss=2.3 - FALLING / 10),
        healthy=forward(results={"val/kept": np.array([0.97, 0.98, 0.97, 0.98, 0.98])}, loss=2.3 - FALLING / 10),
        severity="warning",
        subject="val/kept",
        words=("not improved", "fell by only", "learned nothing", "learning rate"),
    ),
    Case(
        rule=progress.NoProgress(),
        fault=forward(results={"val/kept": np.array([0.31, 0.29, 0.3, 0.3, 0.29]), "val/beta": np.full(5, 0.5)}),
        # A setting that is recorded with the evaluations never changes, and is no result.
        healthy=forward(results={"val/beta": np.full(5, 0.5)}),
        severity="warning",
        subject="val/kept",
        words=("not improved", "targets"),
    ),
    Case(
        rule=batches.NoDiversity(),
        fault=collapsing(0.002, loss=np.full(STEPS, 0.33)),
        # Small outputs are right if the loss still falls.
        healthy=collapsing(0.002, loss=FALLING * np.linspace(1, 0.1, STEPS)),
        severity="warning",
        subject="net",
        words=("collapsed to a constant", "1.0%", "range and unit"),
    ),
    Case(
        rule=objectives.UnboundedLoss(),
        fault=growing(np.geomspace(0.8, 800, 40), loss=11 - 14 * np.log1p(np.arange(STEPS))),
        # The logarithm of an error that is minimized falls as well.
        healthy=growing(np.geomspace(0.8, 1.1, 40), loss=11 - 14 * np.log1p(np.arange(STEPS))),
        severity="warning",
        subject="Loss/total",
        words=("outputs grew", "no lower bound", "sign"),
    ),
    Case(
        rule=terms.TermDominates(),
        fault=prior(np.full(STEPS, 12.0)),
        healthy=prior(12 * FALLING),
        severity="warning",
        subject="divergence",
        words=("dominates", "no better at the end", "weight"),
    ),
    Case(
        rule=results.WorstSample(),
        fault=with_errors(21.0),
        # Errors differ by a factor of one and a half more easily than scores do.
        healthy=with_errors(14.7),
        severity="warning",
        subject="006",
        words=("'006' (21)", "median of the other 7", "pose, mask"),
    ),
    Case(
        rule=rates.RateTooHigh(),
        # Longer sequences are harder; results that improve show that the rate is not to blame.
        fault=with_rates(np.full(STEPS, 0.1), harder(), Eval__error=np.array([0.3, 0.3, 0.3, 0.3])),
        healthy=with_rates(np.full(STEPS, 0.1), harder(), Eval__error=np.array([0.3, 0.2, 0.15, 0.1])),
        severity="warning",
        subject="Loss/total",
        words=("learning rate of 0.1", "learning rate"),
    ),
]
BY_NAME = pytest.mark.parametrize("case", CASES + VARIANTS, ids=lambda case: case.rule.name)


@BY_NAME
def test_names_the_planted_fault(case, make):
    (finding,) = case.rule(case.fault.history(make))
    assert (finding.rule, finding.severity, finding.subject) == (case.rule.name, case.severity, case.subject)
    *says, advises = case.words
    assert [words for words in says if words not in finding.message] == [], finding.message
    assert advises in finding.remedy


@BY_NAME
def test_is_silent_on_the_healthy_twin(case, make):
    assert case.rule(case.healthy.history(make)) == ()
    assert case.rule(History()) == ()


def test_parameters_of_bfloat16_are_a_note_if_their_updates_are_large_enough(make):
    for record in (rounded(FLAT, 2e-2), rounded(FALLING, 2e-4)):
        (found,) = precision.HalfParameters()(record.history(make))
        assert found.severity == "note"


def test_every_rule_of_these_modules_is_planted():
    rules: set[Callable[..., object]] = {rates.AlwaysClipped, rates.GroupTooSlow}
    rules |= {rates.RateEndsEarly, rates.RateStartsLate}
    for module in (batches, chance, evaluations, objectives, precision, sequences, settings, untrained):
        rules |= set(rules_in(module))
    # Planted in test_observed_rules.py, beside the other rules for what the toolkit observes.
    rules -= {batches.BatchesRepeated, batches.EmbeddingsShrink, chance.PairsConfused, precision.RoundedInput}
    assert {type(case.rule) for case in CASES} == rules


MAY_BE_MEANT = [
    *(batches.SameBatch, evaluations.EvaluationInput, batches.BatchOfOne, batches.InputScale),
    *(objectives.SamplesIgnored, objectives.UnmixedBatches, settings.OddSetting, settings.FrozenBody),
]


@pytest.mark.parametrize("rule", MAY_BE_MEANT)
def test_a_fact_that_may_be_intended_is_a_note_while_the_result_is_good(rule, make):
    """Full batches, for example, are the same batch at every step."""
    poor = MEMORIZED["val/loss"]
    (case,) = (each for each in CASES if type(each.rule) is rule and each.fault.rare.get("val/loss") is poor)
    rare = {name: values for name, values in case.fault.rare.items() if name not in MEMORIZED}
    good = Record(columns=case.fault.columns, rare=rare | DONE, events=case.fault.events)
    assert [finding.severity for finding in case.rule(good.history(make))] == ["note"]


def test_outputs_that_died_during_the_training_name_the_rate(make):
    record = Record(
        columns={"Loss/total": FALLING, "LearningRate/0": np.full(STEPS, 0.6)},
        rare={"Forward/net_input_spread": noise(), "Forward/net_output_spread": np.repeat([1.0, 0.0], [5, 35])},
    )
    (finding,) = batches.ConstantOutput()(record.history(make))
    assert "learning rate of 0.6" in finding.message
    assert "learning rate 0.006" in finding.remedy


def test_a_hard_task_is_not_learned_by_heart(make):
    """A loss that has not fallen to nothing implies no accuracy that held-out data would miss."""
    record = Record(columns={"Loss/total": FALLING + 0.6}, rare={"val/accuracy": np.array([40.0, 55.0, 57.0, 58.0])})
    assert batches.ends_poorly(record.history(make)) is False


@pytest.mark.parametrize(("start", "count"), [(0, 1), (64, 1), (65, 0)])
def test_a_head_is_not_untrained_while_a_declared_term_has_not_begun(start, count, make):
    event = {"kind": "without_gradient", "step": 64, "updates": 32, "share": 0.4, "called": True, **EVERY}
    windows = {"kind": "windows", "step": 0, "windows": {"data": (0, STEPS - 1), "clip": (start, STEPS - 1)}}
    record = Record(columns={"Loss/total": FALLING}, rare=DONE, events=[windows, event])
    assert len(untrained.NeverTrained()(record.history(make))) == count
