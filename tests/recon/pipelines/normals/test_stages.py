"""Staged weights: the table of the preset `pmni`, ramps, and invalid texts."""

import pytest

from fieldwatch.recon.pipelines.normals.stages import (
    PAPER_STAGES,
    TERMS,
    TrainingStage,
    read_stages,
    refuse_disorder,
    weights_at,
)

PAPER = read_stages(PAPER_STAGES)


@pytest.mark.parametrize(
    ("iteration", "normal", "depth", "mask"),
    [
        (0, None, 0.1, 3),
        (499, None, 0.1, 3),
        (500, None, 0.1, 3),
        (2499, None, 0.1, 3),
        (2500, None, 0.1, 3),
        (3750, 0.5, 0.55, 4),
        (5000, 1, 1, 5),
        (9999, 1, 1, 5),
        (10_000, 1, 1, 5),
        (15_000, 1, 0.5, 5),
        (20_000, 1, None, 5),
        (29_999, 1, None, 5),
    ],
)
def test_the_seeds_table(iteration, normal, depth, mask):
    weights = weights_at(PAPER, iteration)
    wanted = {"normal": normal, "depth": depth, "mask": mask, "eikonal": 1}
    assert weights == pytest.approx({term: weight for term, weight in wanted.items() if weight is not None})


def test_what_a_text_says_is_read():
    text = "  late-fit@40+5  normal=1.5 surface=1e-2 "
    assert read_stages(["a@0 mask=1", text]) == (
        TrainingStage(name="a", mask=1.0),
        TrainingStage(name="late-fit", start=40, ramp=5, normal=1.5, surface=0.01),
    )
    every = "all@0 " + " ".join(f"{term}={number}" for number, term in enumerate(TERMS, 1))
    assert list(weights_at(read_stages([every]), 0).values()) == [1, 2, 3, 4, 5, 6, 7]


def test_a_ramp_goes_from_the_stage_before_to_its_own_and_stays():
    stages = read_stages(["a@0 mask=2", "b@10+10 mask=1 normal=4", "c@30 mask=7"])
    assert [weights_at(stages, at)["mask"] for at in (9, 10, 15, 20, 29.5, 30)] == [2, 2, 1.5, 1, 1, 7]
    assert [weights_at(stages, at).get("normal", 0) for at in (10, 12.5, 20, 30)] == [0, 1, 4, 0]


def test_a_weight_that_does_not_change_is_the_same_to_the_bit_within_a_ramp():
    stages = read_stages(["a@0 mask=0.1", "b@10+7 mask=0.1 normal=1"])
    assert {weights_at(stages, at)["mask"] for at in range(20)} == {0.1}


@pytest.mark.parametrize(
    "text",
    ["", "mask=1", "a mask=1", "a@ mask=1", "a@-1 mask=1", "a@1.5 mask=1", "a@0+ mask=1", "a@0 mask", "a@0 masks=1",
     "a@0 mask=1 mask=2", "a@0 mask = 1", "a b@0 mask=1"],
)  # fmt: skip
def test_another_form_is_refused_with_the_form_and_the_terms(text):
    with pytest.raises(ValueError, match=r"is not NAME@START\[\+RAMP\] TERM=WEIGHT") as refused:
        read_stages(["ok@0 mask=1", text])
    assert repr(text) in str(refused.value)
    assert all(term in str(refused.value) for term in TERMS)


def test_a_weight_that_is_no_number_is_refused():
    with pytest.raises(ValueError, match=r"stage 'a@0 mask=high'.*'high'.*normal=1.0"):
        read_stages(["a@0 mask=high"])


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ([], r"at least one stage, the first starting at 0 .* got starts \[\]"),
        (["a@5 mask=1"], r"got starts \[5\]"),
        (["a@0 mask=1", "b@9 mask=1", "c@9 mask=1"], r"each after the one before, got starts \[0, 9, 9\]"),
        (["a@0 mask=1", "a@9 mask=1"], r"stages must have unique names, got \['a', 'a'\]"),
        (["a@0 mask=-1"], r"weights of stage 'a' must be finite and at least 0, got \{'mask': -1.0\}"),
        (["a@0 mask=nan normal=inf"], r"weights of stage 'a' must be finite .* got \{'normal': inf, 'mask': nan\}"),
        (["a@0 mask=1", "b@9"], "every weight of stage 'b' is 0, so it trains nothing"),
        (
            ["a@0 mask=1", "b@9+6 mask=2", "c@14 mask=1"],
            "stage 'b' must not be longer .* ramp of 6 iterations in a stage of 5",
        ),
        (["a@0 mask=1", "b@9+92 mask=2"], "stage 'b' must not be longer .* ramp of 92 iterations in a stage of 91"),
    ],
)
def test_stages_that_no_training_can_follow_are_refused(texts, message):
    with pytest.raises(ValueError, match=message):
        refuse_disorder(read_stages(texts), nominal=100)


def test_stages_after_the_end_are_left_alone():
    refuse_disorder(read_stages(["a@0+100 mask=1", "b@100+50 mask=2", "c@200 mask=3"]), nominal=100)
    refuse_disorder(PAPER, nominal=30_000)
