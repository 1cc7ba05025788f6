"""What the operations behind a loss show of it: values that were squashed twice, wrong axes, shapes and signs."""

import math
import warnings

import pytest
import torch
from torch.nn import functional

from fieldwatch import Terms
from fieldwatch.run.loop_checks.loss_forms import LossFormCheck, chance_levels, floors, has_yes_no_loss

INPUTS = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
WEIGHT = torch.full((3, 4), 0.1, requires_grad=True)
CLASSES = torch.tensor([0, 1, 2, 0, 1, 2])
VALUES = torch.linspace(-1, 1, 6)
ROWS = torch.arange(6)
CHANCES_OF_A_TEACHER = torch.tensor([[0.2, 0.3, 0.5]]).expand(6, 3)


def logits():
    return functional.linear(INPUTS, WEIGHT)


def alike():
    rows = functional.normalize(logits())
    return rows @ rows.T


def single():
    return functional.linear(INPUTS, WEIGHT[:1])


def forms(value, weight=1.0, **others):
    terms = Terms(fit=(weight, value), **others)
    # Saved tensors are freed by the backward pass, the operations are not.
    terms.total.backward()
    return [event["form"] for event in LossFormCheck().check(0, terms)]


FAULTS = {
    "activated softmax": ("activated", lambda: functional.cross_entropy(logits().softmax(1), CLASSES)),
    "activated sigmoid": (
        "activated",
        lambda: functional.binary_cross_entropy_with_logits(single().sigmoid(), VALUES[:, None].abs()),
    ),
    "activated relu": ("activated", lambda: functional.cross_entropy(logits().relu(), CLASSES)),
    "axis of softmax": ("axis", lambda: functional.nll_loss(logits().softmax(0).log(), CLASSES)),
    "axis of log_softmax": ("axis", lambda: functional.nll_loss(logits().log_softmax(0), CLASSES)),
    "no logarithm": ("no_log", lambda: functional.nll_loss(logits().softmax(1), CLASSES)),
    "divergence of probabilities": (
        "no_log",
        lambda: functional.kl_div(logits().softmax(1), CHANCES_OF_A_TEACHER, reduction="batchmean"),
    ),
    "divergence of activations": (
        "no_log",
        lambda: functional.kl_div(single().sigmoid(), VALUES[:, None].abs(), reduction="sum"),
    ),
    "crossed by hand": ("crossed", lambda: (single() - VALUES).square().mean()),
    "crossed by mse_loss": ("crossed", lambda: functional.mse_loss(single(), VALUES)),
    "crossed rows of horizons": ("crossed", lambda: (logits()[:, None] - logits().detach()[None]).square().mean()),
    "crossed absolute": ("crossed", lambda: (VALUES - single()).abs().mean()),
    "negated": ("negated", lambda: -functional.mse_loss(single()[:, 0], VALUES)),
    "moving target": (
        "moving",
        lambda: functional.kl_div(logits().log_softmax(1), (2 * logits()).softmax(1), reduction="batchmean"),
    ),
    "moving target by its logarithm": (
        "moving",
        lambda: functional.kl_div(logits().log_softmax(1), (2 * logits()).log_softmax(1), log_target=True),
    ),
    "similarities with itself": (
        "itself",
        lambda: functional.cross_entropy(alike() / 0.2, ROWS),
    ),
    "crossed product": ("crossed_product", lambda: -(logits()[:, 0] * VALUES[:, None]).mean()),
    "crossed product of ratios": (
        "crossed_product",
        lambda: -torch.minimum(logits()[:, 0] * VALUES[:, None], VALUES[:, None]).mean(),
    ),
    "bounded": ("bounded", lambda: functional.mse_loss(single()[:, 0].tanh(), VALUES)),
}
SOUND = {
    "cross_entropy": lambda: functional.cross_entropy(logits(), CLASSES),
    "label smoothing": lambda: functional.cross_entropy(logits(), CLASSES, label_smoothing=0.1),
    "log of probabilities": lambda: functional.nll_loss(logits().softmax(1).log(), CLASSES),
    "divergence of logarithms": lambda: functional.kl_div(
        logits().log_softmax(1), CHANCES_OF_A_TEACHER, reduction="batchmean"
    ),
    "divergence the other way": lambda: functional.kl_div(
        CHANCES_OF_A_TEACHER.log(), logits().softmax(1), reduction="batchmean"
    ),
    "chances of what was wanted": lambda: 1 - (CHANCES_OF_A_TEACHER * logits().softmax(1)).sum(1).mean(),
    "classes on axis 0, transposed": lambda: functional.nll_loss(logits().T.softmax(0).T.log(), CLASSES),
    "squares": lambda: (single()[:, 0] - VALUES).square().mean(),
    "pairs of outputs": lambda: functional.softplus(single() - single().T).mean(),
    "kernel of outputs and data": lambda: (-(single() - VALUES).square()).exp().mean(),
    "energy distance": lambda: (single() - VALUES).abs().mean() - (single() - single().T).abs().mean() / 2,
    "similarities with others": lambda: functional.cross_entropy(
        alike().masked_fill(torch.eye(6, dtype=torch.bool), -1e9), ROWS.roll(1)
    ),
    "similarities of two views": lambda: functional.cross_entropy(logits() @ logits().T, ROWS),
    "outputs times weights": lambda: -(logits()[:, 0] * VALUES).mean(),
    "likelihood": lambda: -logits().log_softmax(1)[:, 0].mean(),
}


@pytest.mark.parametrize(("form", "loss"), FAULTS.values(), ids=FAULTS)
def test_names_the_form(form, loss):
    with warnings.catch_warnings():
        # torch itself warns of shapes that are broadcast.
        warnings.simplefilter("ignore", UserWarning)
        assert forms(loss()) == [form]


@pytest.mark.parametrize("loss", SOUND.values(), ids=SOUND)
def test_is_silent_on_sound_losses(loss):
    assert forms(loss()) == []


def test_a_player_of_a_game_may_maximize_the_error_of_the_other():
    error = functional.mse_loss(single()[:, 0], VALUES)
    assert forms(error, weight=-1.0) == ["negated"]
    assert forms(-functional.mse_loss(single()[:, 0], VALUES), other=(1.0, single().mean())) == []


def test_each_form_is_named_once_and_only_at_the_first_steps():
    check = LossFormCheck()
    terms = Terms(fit=(1.0, functional.cross_entropy(logits().softmax(1), CLASSES)))
    assert [len(list(check.check(step, terms))) for step in (0, 1)] == [1, 0]
    assert list(LossFormCheck().check(2, terms)) == []
    assert list(LossFormCheck().check(0, Terms(fit=(1.0, torch.tensor(1.0))))) == []


@pytest.mark.parametrize("weight", [None, torch.tensor(4.0)])
def test_a_binary_cross_entropy_is_known_behind_any_term(weight):
    asked = Terms(fit=(1.0, functional.mse_loss(single()[:, 0], VALUES)))
    answered = functional.binary_cross_entropy_with_logits(single()[:, 0], (VALUES > 0).float(), pos_weight=weight)
    assert not has_yes_no_loss(asked)
    assert has_yes_no_loss(Terms(fit=(1.0, asked["fit"].value), yes=(0.5, answered + single().mean())))


def test_losses_that_are_never_negative_are_found_behind_their_means_only():
    chances = functional.linear(INPUTS, WEIGHT).log_softmax(1)
    lengths = torch.full((2,), 3)
    read = functional.ctc_loss(
        chances.view(3, 2, 3), torch.tensor([[1], [2]]), lengths, torch.ones(2, dtype=torch.long)
    )
    answered = functional.binary_cross_entropy_with_logits(single(), 255 * VALUES[:, None].abs())
    terms = Terms(
        read=(1.0, read),
        mask=(0.5, answered),
        # The sign of a multiple is that of its factor, and a difference has any sign.
        negated=(1.0, -answered),
        less=(1.0, answered - 1),
        squares=(1.0, single().square().mean()),
    )
    terms.total.backward()
    assert [found["term"] for found in floors(terms)] == ["read", "mask"]


CHANCES = {
    "cross_entropy": (3, lambda: functional.cross_entropy(logits(), CLASSES)),
    "weights of classes": (
        3,
        lambda: functional.cross_entropy(logits(), CLASSES, weight=torch.tensor([1.0, 2.0, 3.0])),
    ),
    "mean by hand": (3, lambda: functional.cross_entropy(logits(), CLASSES, reduction="none").mean()),
    "contrastive": (6, lambda: functional.cross_entropy(logits() @ logits().T, torch.arange(6))),
    "places": (3, lambda: functional.cross_entropy(logits()[..., None].expand(6, 3, 5), CLASSES[:, None].expand(6, 5))),
    "binary with logits": (2, lambda: functional.binary_cross_entropy_with_logits(single()[:, 0], VALUES.abs())),
    "binary": (2, lambda: functional.binary_cross_entropy(single()[:, 0].sigmoid(), VALUES.abs())),
}
NO_CHANCES = {
    "sum": lambda: functional.cross_entropy(logits(), CLASSES, reduction="sum"),
    "scaled": lambda: 2 * functional.cross_entropy(logits(), CLASSES),
    "weights of samples": lambda: torch.mean(VALUES * functional.cross_entropy(logits(), CLASSES, reduction="none")),
    "weight of yes": lambda: functional.binary_cross_entropy_with_logits(
        single()[:, 0], VALUES.abs(), pos_weight=torch.tensor(3.0)
    ),
    "with a further term": lambda: functional.cross_entropy(logits(), CLASSES) + WEIGHT.square().sum(),
    "squares": lambda: functional.mse_loss(single()[:, 0], VALUES),
}


def chances(value):
    terms = Terms(fit=(0.5, value))
    terms.total.backward()
    return [(event["outcomes"], event["chance"]) for event in chance_levels(terms)]


@pytest.mark.parametrize("name", CHANCES)
def test_the_loss_of_equal_chances_is_known(name):
    outcomes, make = CHANCES[name]
    assert chances(make()) == [(outcomes, math.log(outcomes))]


@pytest.mark.parametrize("name", NO_CHANCES)
def test_the_loss_of_equal_chances_is_unknown_if_it_is_scaled_or_summed(name):
    assert chances(NO_CHANCES[name]()) == []


def test_no_constant_has_a_higher_cross_entropy_than_equal_chances():
    for name, (outcomes, _) in CHANCES.items():
        if name == "cross_entropy":
            shares = torch.bincount(CLASSES, minlength=outcomes) / len(CLASSES)
            constant = shares.log().expand(len(CLASSES), outcomes)
            assert functional.cross_entropy(constant, CLASSES) <= math.log(outcomes) + 1e-6
