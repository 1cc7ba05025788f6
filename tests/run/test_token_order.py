"""Where the tokens of evaluations stand: padding on the other side, and a start that is missing."""

import pytest
import torch
from torch import nn

from fieldwatch.run.loop_checks.forwards import ForwardCheck
from fieldwatch.run.loop_checks.input_samples import sampled
from fieldwatch.run.loop_checks.token_order import TokenOrder

PAD = 0
START = 1
GENERATOR = torch.Generator().manual_seed(7)


def words(columns=8, count=64):
    return torch.randint(2, 12, (count, columns), generator=GENERATOR)


def on_the_right(tokens, lengths):
    return torch.where(torch.arange(tokens.shape[1]) < lengths[:, None], tokens, PAD)


def on_the_left(tokens, lengths):
    return on_the_right(tokens, lengths).flip(1)


def lengths(count=64):
    return torch.randint(3, 7, (count,), generator=GENERATOR)


def begun(tokens):
    return torch.cat([torch.full((len(tokens), 1), START), tokens], dim=1)


def noted(*batches):
    order = TokenOrder()
    for batch in batches:
        order.note(sampled([batch]))
    return order


def differences(order, *arguments):
    found = order.differences("net", sampled(arguments))
    return {name.removeprefix("Forward/net_evaluation_"): value.item() for name, value in found.items()}


SIDES = {"right": on_the_right, "left": on_the_left}


@pytest.mark.parametrize(("side", "other"), [("right", "left"), ("left", "right")])
def test_padding_on_the_other_side_is_found_without_knowing_the_token(side, other):
    order = noted(*(SIDES[side](words(), lengths()) for _ in range(4)))
    assert differences(order, SIDES[other](words(5), lengths() - 2))["padding"] == 1
    assert differences(order, SIDES[side](words(5), lengths() - 2))["padding"] == 0
    assert differences(order, words(5))["padding"] == 0


def test_tokens_that_are_found_anywhere_are_no_padding():
    order = noted(*(words() for _ in range(4)))
    assert differences(order, on_the_left(words() + 20, lengths()))["padding"] == 0


def test_sequences_with_a_mask_may_be_padded_anywhere():
    order = TokenOrder()
    for _ in range(4):
        tokens = on_the_right(words(), lengths())
        order.note(sampled([tokens, tokens != PAD]))
    left = on_the_left(words(), lengths())
    assert differences(order, left, left != PAD) == {}


def test_a_start_that_all_sequences_of_the_training_have_is_missed():
    order = noted(*(begun(words()) for _ in range(4)))
    assert differences(order, words())["start"] == 1
    assert differences(order, begun(words(3)))["start"] == 0
    # Written on from the start alone.
    assert differences(order, torch.full((64, 1), START)) == {"start": 0}


def test_sequences_that_begin_with_any_token_have_no_start():
    assert differences(noted(*(words() for _ in range(4))), begun(words()))["start"] == 0
    assert differences(noted(begun(words(count=8))), words())["start"] == 0


def test_other_inputs_are_no_sequences():
    for other in (torch.rand(64, 5), torch.ones(64, 2, 3, dtype=torch.long), torch.ones(64, dtype=torch.long)):
        order = noted(other)
        assert differences(order, other) == {}


def test_a_restored_copy_measures_the_same():
    order = noted(begun(on_the_right(words(), lengths())))
    copy = TokenOrder()
    copy.load_state_dict(order.state_dict())
    left = on_the_left(words(), lengths())
    assert differences(copy, left) == differences(order, left)


def test_the_first_forward_of_an_evaluation_is_compared():
    check = ForwardCheck()
    net = nn.Sequential(nn.Embedding(12, 4), nn.Flatten(0, 1), nn.Linear(4, 2))
    check.open({"net": net})
    for _ in range(4):
        check.begin(due=True)
        net(on_the_right(words(), lengths())).sum().backward()
        check.at_update()
    with torch.no_grad():
        net(on_the_left(words(), lengths()))
    found = check.at_record()
    check.close()
    assert found["Forward/net_evaluation_padding"].item() == 1
    assert found["Forward/net_evaluation_start"].item() == 0
