"""The gradient of an output tells its targets: classes and hits, errors and their variance, padding, positions."""

import math

import pytest
import torch
from torch import nn
from torch.nn import functional

from fieldwatch.health.rules import sequences
from fieldwatch.record import tags
from fieldwatch.run.loop_checks.forwards import ForwardCheck
from fieldwatch.run.loop_checks.output_gradients import position_spread

GENERATOR = torch.Generator().manual_seed(0)
INPUTS = torch.randn(64, 5, generator=GENERATOR)
CLASSES = torch.randint(4, (64,), generator=GENERATOR)
VALUES = 3 * torch.randn(64, generator=GENERATOR) + 7


def measured(model, loss, inputs=INPUTS, **more):
    """Return what one step records of a model named ``net``, without the prefix."""
    check = ForwardCheck()
    check.open({"net": model, **more})
    check.begin(due=True)
    loss(model(inputs)).backward()
    found = check.at_update()
    check.close()
    prefix = "Forward/net_"
    return {name.removeprefix(prefix): value for name, value in found.items() if name.startswith(prefix)}


def linear(outputs):
    torch.manual_seed(0)
    return nn.Linear(5, outputs)


@pytest.mark.parametrize("scale", [1.0, 1024.0])
def test_classes_are_those_of_the_cross_entropy_whatever_its_scale(scale):
    model = linear(4)
    found = measured(model, lambda logits: scale * functional.cross_entropy(logits, CLASSES))
    logits = model(INPUTS)
    assert found["hits"] == pytest.approx((logits.argmax(1) == CLASSES).float().mean().item())
    assert found["implied_loss"].item() == pytest.approx(functional.cross_entropy(logits, CLASSES).item(), rel=1e-5)
    shares = CLASSES.bincount(minlength=4) / 64
    assert found["target_entropy"].item() == pytest.approx(-(shares * shares.log()).sum().item(), rel=1e-5)
    assert found["target_share"].item() == pytest.approx(shares.max().item())
    assert found["class_sum"] < 1e-5
    assert found["live_share"] == 1


def smooth(logits):
    return functional.cross_entropy(logits, CLASSES, label_smoothing=0.1)


def focal(logits):
    entropy = functional.cross_entropy(logits, CLASSES, reduction="none")
    return ((1 - (-entropy).exp()).square() * entropy).mean()


@pytest.mark.parametrize(
    ("ending", "loss", "twice", "unlogged"),
    [
        (nn.Identity(), lambda z: functional.cross_entropy(z, CLASSES), None, None),
        (nn.Identity(), smooth, False, False),
        (nn.Identity(), focal, False, False),
        (nn.Identity(), lambda z: functional.mse_loss(z, functional.one_hot(CLASSES, 4).float()), False, False),
        (nn.Identity(), lambda z: functional.cross_entropy(z.softmax(1), CLASSES), True, False),
        (nn.Identity(), lambda z: functional.nll_loss(z.softmax(1), CLASSES), False, True),
        (nn.Softmax(1), lambda p: functional.cross_entropy(p, CLASSES), True, False),
        (nn.Softmax(1), lambda p: functional.nll_loss(p, CLASSES), False, True),
        (nn.Softmax(1), lambda p: functional.nll_loss(p.log(), CLASSES), False, False),
    ],
    ids=["logits", "smooth", "focal", "squares", "twice", "unlogged", "in-module", "unlogged-in-module", "log"],
)
def test_the_gradient_tells_of_softmax_twice_and_of_a_missing_logarithm(ending, loss, twice, unlogged):
    torch.manual_seed(0)
    layer = nn.Linear(5, 4)
    nn.init.normal_(layer.weight, std=0.4)
    found = measured(nn.Sequential(layer, ending), loss)
    for name, exact in (("softmax_twice", twice), ("no_logarithm", unlogged)):
        misfit = found[name].item()
        assert math.isnan(misfit) if exact is None else (misfit < 1e-6) == exact


RARE = torch.repeat_interleave(torch.arange(4), torch.tensor([40, 15, 6, 3]))


@pytest.mark.parametrize(
    ("exponent", "scale"),
    [(0.0, 1.0), (-1.0, 1.0), (1.0, 1.0), (0.5, 1024.0)],
    ids=["equal", "inverse", "same", "root"],
)
def test_weights_of_classes_are_known_by_how_they_grow_with_the_frequency(exponent, scale):
    weight = RARE.bincount().float() ** exponent
    found = measured(linear(4), lambda logits: scale * functional.cross_entropy(logits, RARE, weight))
    assert found["weight_slope"].item() == pytest.approx(exponent, abs=1e-3)


def test_weights_of_equally_frequent_classes_have_no_slope():
    even = torch.arange(64) % 4
    found = measured(linear(4), lambda logits: functional.cross_entropy(logits, even, torch.tensor([1.0, 2, 3, 4])))
    assert math.isnan(found["weight_slope"])


def test_pixels_have_their_classes_on_dimension_1():
    model = nn.Conv2d(1, 3, 1)
    labels = torch.arange(2 * 16).reshape(2, 4, 4) % 3
    found = measured(model, lambda z: functional.cross_entropy(z, labels), torch.rand(2, 1, 4, 4))
    assert found["class_sum"] < 1e-5
    assert found["target_share"].item() == pytest.approx(11 / 32)


def test_a_softmax_over_the_batch_sums_to_zero_over_the_batch():
    found = measured(linear(4), lambda logits: functional.nll_loss(logits.log_softmax(0), CLASSES))
    assert found["batch_sum"] < 1e-5
    assert found["class_sum"] > 0.05


def test_errors_give_the_variance_of_the_targets():
    model = linear(1)
    found = measured(model, lambda z: functional.mse_loss(z[:, 0], VALUES))
    assert found["error_square"].item() == pytest.approx(functional.mse_loss(model(INPUTS)[:, 0], VALUES).item())
    variance = found["output_variance"] - 2 * found["error_covariance"] + found["error_variance"]
    assert variance.item() == pytest.approx(VALUES.var(correction=0).item(), rel=1e-4)
    assert found["target_low"].item() == pytest.approx(VALUES.min().item(), rel=1e-4)


def test_outputs_from_which_the_loss_selects_have_no_targets():
    found = measured(linear(4), lambda z: functional.mse_loss(z.gather(1, CLASSES[:, None])[:, 0], VALUES))
    assert math.isnan(found["error_square"])


def test_samples_without_a_gradient_count():
    found = measured(linear(4), lambda logits: functional.cross_entropy(logits[:16], CLASSES[:16]))
    assert found["live_share"] == 0.25


def test_gradients_of_zero_show_no_classes():
    found = measured(linear(4), lambda logits: 0 * functional.cross_entropy(logits, CLASSES))
    assert math.isnan(found["class_sum"])
    assert found["unused_share"] == 1


def test_an_output_that_equals_a_column_of_the_input():
    model = nn.Linear(5, 1)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.0, 2.0, 0.0, 0.0, 0.0]]))
    assert measured(model, torch.Tensor.sum)["copied_input"].item() == pytest.approx(1.0, rel=1e-5)
    assert measured(linear(1), torch.Tensor.sum)["copied_input"] < 0.98


def test_columns_of_other_units_have_another_scale():
    inputs = INPUTS * torch.tensor([1.0, 1.0, 1e5, 1.0, 1.0])
    assert measured(linear(1), torch.Tensor.sum, inputs)["input_ratio"] > 1e3
    assert measured(linear(1), torch.Tensor.sum)["input_ratio"] < 3


class Tagger(nn.Module):
    """An embedding with attention, with or without positions and a causal mask."""

    def __init__(self, *, positions=True, causal=True):
        super().__init__()
        torch.manual_seed(0)
        self.letters = nn.Embedding(9, 8)
        self.places = nn.Parameter(torch.randn(6, 8) if positions else torch.zeros(6, 8))
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 9)
        self.causal = causal

    def forward(self, tokens):
        hidden = self.letters(tokens) + self.places
        mask = torch.ones(6, 6, dtype=torch.bool).triu(1) if self.causal else None
        return self.head(hidden + self.attention(hidden, hidden, hidden, attn_mask=mask, need_weights=False)[0])


TOKENS = torch.randint(9, (32, 7), generator=GENERATOR)


def of_tokens(logits):
    return functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, 1:].flatten())


def test_the_targets_of_a_language_model_are_its_next_tokens():
    found = measured(Tagger(), of_tokens, TOKENS[:, :-1])
    assert found["next_share"] == 1
    assert found["same_share"] < 0.5
    assert found["position_spread"] > 0.01


def test_targets_that_are_not_shifted_are_the_tokens_of_the_input():
    def unshifted(logits):
        return functional.cross_entropy(logits.flatten(0, 1), TOKENS[:, :-1].flatten())

    found = measured(Tagger(), unshifted, TOKENS[:, :-1])
    assert found["same_share"] == 1
    assert found["next_share"] < 0.5


def test_attention_without_positions_returns_the_same_for_equal_tokens():
    assert measured(Tagger(positions=False, causal=False), of_tokens, TOKENS[:, :-1])["position_spread"] < 1e-5


@pytest.mark.parametrize(("causal", "least", "most"), [(True, 0.0, 1e-6), (False, 1e-3, 2.0)])
def test_a_model_that_sees_the_future_is_asked_once(causal, least, most):
    model = Tagger(causal=causal)
    check = ForwardCheck()
    check.open({"net": model})
    check.begin(due=True)
    of_tokens(model(TOKENS[:, :-1])).backward()
    check.at_update()
    model.eval()
    state = torch.get_rng_state()
    with torch.no_grad():
        model(TOKENS[:, :-1])
    spread = check.at_record()[tags.FUTURE_SPREAD.tag("net")]
    assert least <= spread <= most
    assert torch.equal(torch.get_rng_state(), state)
    check.begin(due=True)
    of_tokens(model(TOKENS[:, :-1])).backward()
    check.at_update()
    with torch.no_grad():
        model(TOKENS[:, :-1])
    assert tags.FUTURE_SPREAD.tag("net") not in check.at_record()
    check.close()


def test_padding_is_where_the_same_token_has_the_same_class():
    tokens = torch.where(torch.arange(6) < 2, TOKENS[:, :6].clamp_min(1), 0)
    classes = torch.where(tokens > 0, tokens % 3 + 1, 0)
    found = measured(Tagger(), lambda z: functional.cross_entropy(z.flatten(0, 1), classes.flatten()), tokens)
    assert found["blank_share"].item() == pytest.approx(4 / 6, abs=0.01)
    masked = measured(
        Tagger(), lambda z: functional.cross_entropy(z.flatten(0, 1), classes.flatten(), ignore_index=0), tokens
    )
    assert masked["blank_share"] < sequences.PaddingCounts().share


def test_the_parts_of_a_container_are_measured():
    parts = nn.ModuleDict({"body": nn.Linear(5, 6), "head": nn.Linear(6, 4)})
    check = ForwardCheck()
    check.open({"net": parts})
    check.begin(due=True)
    functional.cross_entropy(parts["head"](parts["body"](INPUTS)), CLASSES).backward()
    assert tags.HITS.tag("net.head") in check.at_update()
    check.close()
    assert not parts["head"]._forward_hooks


def test_the_gradients_are_those_without_the_hook():
    model = linear(4)
    functional.cross_entropy(model(INPUTS), CLASSES).backward()
    plain = model.weight.grad.clone()
    model.zero_grad()
    measured(model, lambda logits: functional.cross_entropy(logits, CLASSES))
    assert torch.equal(model.weight.grad, plain)


def test_equal_tokens_are_needed_to_compare_them():
    assert position_spread(torch.arange(6)[None], torch.rand(1, 6, 3)) == 1
    assert position_spread(torch.rand(2, 3), torch.rand(2, 3)) is None


YES = (CLASSES == 0).float()


def overlap(said):
    return float((said & (YES > 0)).sum() / (said | (YES > 0)).sum())


@pytest.mark.parametrize("weight", [1.0, 20.0])
@pytest.mark.parametrize("as_chance", [False, True])
def test_yes_or_no_is_read_from_the_gradient_of_logits_and_of_probabilities(weight, as_chance):
    model = nn.Sequential(linear(1), nn.Sigmoid()) if as_chance else linear(1)

    def loss(made):
        size = torch.where(YES > 0, weight, 1.0)
        if as_chance:
            return functional.binary_cross_entropy(made[:, 0], YES, weight=size)
        return functional.binary_cross_entropy_with_logits(made[:, 0], YES, weight=size)

    found = measured(model, loss)
    made = model(INPUTS)[:, 0]
    said = made > (0.5 if as_chance else 0)
    assert found["binary_spread"] < 1e-3
    assert found["binary_hits"].item() == pytest.approx((said == (YES > 0)).float().mean().item())
    assert found["binary_share"].item() == pytest.approx(YES.mean().item())
    assert found["binary_overlap"].item() == pytest.approx(overlap(said))
    sizes = torch.where(YES > 0, weight, 1.0).mean()
    assert found["binary_loss"].item() == pytest.approx((loss(model(INPUTS)) / sizes).item(), rel=1e-3)
    share = float((weight * YES).sum() / (weight * YES + 1 - YES).sum())
    assert found["binary_guess"].item() == pytest.approx(
        -share * math.log(share) - (1 - share) * math.log(1 - share), rel=1e-3
    )


@pytest.mark.parametrize(
    "loss",
    [
        lambda made: functional.mse_loss(made[:, 0], VALUES),
        lambda made: functional.l1_loss(made[:, 0], VALUES),
        lambda made: (1 - (2 * YES - 1) * made[:, 0]).clamp_min(0).mean(),
    ],
    ids=["squares", "absolute", "hinge"],
)
def test_other_losses_are_not_taken_for_yes_or_no(loss):
    assert measured(linear(1), loss)["binary_spread"] > 0.1


def test_the_state_of_an_earlier_version_is_restored():
    model = nn.Linear(2, 3)
    check = ForwardCheck()
    check.open({"model": model})
    check.begin(due=True)
    model(torch.rand(4, 2))
    state = check.state_dict()
    del state["model"]["seen"]
    check.close()
    resumed = ForwardCheck()
    resumed.load_state_dict(state)
    resumed.open({"model": model})
    resumed.close()
    assert state["model"]["columns"] is not None
