import pytest
import torch

from fieldwatch.measure import Terms, Window


def test_total_is_the_weighted_sum_in_the_order_given():
    a = torch.tensor(0.3)
    b = torch.tensor(7.0)
    assert torch.equal(Terms(a=(1.0, a), b=(0.1, b)).total, a + 0.1 * b)


def test_weight_one_leaves_the_bits_of_the_loss_alone():
    value = torch.tensor(0.1, requires_grad=True)
    assert Terms(only=(1.0, value)).total is value


VALUES = [0.3, -1.7e-5, 3.4e37, 1e-42, -0.0, 5.0, float("inf"), float("nan")]


@pytest.mark.parametrize("count", range(1, len(VALUES) + 1))
def test_a_total_that_is_added_up_on_the_host_is_torchs_to_the_bit(count):
    weights = [0.1, -3.3, 1.0, 7, 0.5, 1e-30, 2.0, 1.0]
    terms = {f"t{k}": (weights[k], torch.tensor(VALUES[k])) for k in range(count)}
    expected = Terms(**terms)
    found = Terms(**terms)
    found.add_up_on_host()
    assert found._total is not None
    assert found.total.numpy().tobytes() == expected.total.numpy().tobytes() or expected.total.isnan()
    assert bool(found.total.isnan()) == bool(expected.total.isnan())


@pytest.mark.parametrize(
    "value", [torch.tensor(0.5, requires_grad=True), torch.tensor(0.5, dtype=torch.float64), torch.tensor(2)], ids=str
)
def test_the_host_adds_up_only_plain_float32(value):
    terms = Terms(plain=(0.5, torch.tensor(1.0)), other=(0.5, value))
    terms.add_up_on_host()
    assert terms._total is None
    assert float(terms.total.detach()) == 0.5 + 0.5 * float(value.detach())


def test_joining_keeps_both_and_refuses_a_name_twice():
    a = Terms(a=(1.0, torch.tensor(1.0)))
    b = Terms(b=(2.0, torch.tensor(3.0)))
    assert float((a | b).total) == 7.0
    with pytest.raises(ValueError, match="term 'a' is given twice"):
        a | a


@pytest.mark.usefixtures("unchecked")
def test_a_term_that_is_not_a_scalar_says_its_shape_and_what_to_do():
    with pytest.raises(ValueError, match=r"term 'normal'.*shape \(1024,\): reduce it"):
        Terms(normal=(1.0, torch.zeros(1024)))
    with pytest.raises(TypeError, match=r"write normal=\(1.0, error\)"):
        Terms(normal=torch.zeros(()))


def test_no_active_term_is_an_error():
    with pytest.raises(ValueError, match="no loss term"):
        _ = Terms().total


@pytest.mark.parametrize(("step", "inside"), [(6999, False), (7000, True), (9000, True), (9001, False)])
def test_a_window_holds_its_first_and_last_step(step, inside):
    assert (step in Window(7000, 9000)) is inside


def test_a_window_without_end_goes_on():
    assert 10**9 in Window(5)
    with pytest.raises(ValueError, match=r"requires 0 <= first <= last, got"):
        Window(5, 4)


@pytest.mark.parametrize("pieces", [2, 3, 7, 20])
def test_a_weight_that_all_pieces_have_stays_as_it_is(pieces):
    values = torch.rand(pieces)
    joined = Terms.merged([(1 / pieces, Terms(depth=(0.1, value))) for value in values])
    mean = torch.zeros(())
    for value in values:
        mean = mean + value / pieces
    assert joined["depth"].weight == 0.1
    assert torch.equal(joined["depth"].value, mean)


def test_weights_that_differ_among_pieces_are_added_up_by_share():
    pieces = [(0.25, Terms(mask=(2.0, torch.tensor(1.0)))), (0.75, Terms(mask=(4.0, torch.tensor(3.0))))]
    joined = Terms.merged(pieces)
    assert joined["mask"].weight == pytest.approx(3.5)
    assert float(joined.total) == pytest.approx(sum(share * float(terms.total) for share, terms in pieces))


def test_a_term_that_a_piece_lacks_counts_as_zero_there():
    pieces = [(0.5, Terms(mask=(1.0, torch.tensor(3.0)))), (0.5, Terms(surface=(2.0, torch.tensor(5.0))))]
    assert float(Terms.merged(pieces).total) == pytest.approx(6.5)
