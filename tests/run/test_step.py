"""Texts and clipping factors recorded by a step."""

import math

import numpy as np
import pytest
import torch

from fieldwatch import Outputs, Run, Saving, Terms, read_history


class Shown:
    """A sink that stores the texts it receives."""

    def __init__(self):
        self.texts = []

    def __call__(self, block):
        pass

    def text(self, name, position, markdown):
        self.texts.append((name, position, markdown))


def test_a_text_is_sent_to_every_sink_that_supports_text(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(1))
    sink = Shown()
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=(sink, lambda _: None))) as run:
        run.track(groups={"weight": [weight]})
        for step in run.steps(2):
            step.observe(Terms(one=(1.0, weight.sum())))
            step.text("Training_Guide", f"# {step.index}")
        step.text("Training_Guide", "later", position=7)
    assert sink.texts == [("Training_Guide", 0, "# 0"), ("Training_Guide", 1, "# 1"), ("Training_Guide", 7, "later")]


def clipped_run(folder, clip, *, spoil=None):
    """Ten steps whose gradient is 3 for one group and the 0-based step plus 1 for the other."""
    first = torch.nn.Parameter(torch.zeros(1))
    second = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([first, second], lr=0.1)
    with Run(folder, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(groups={"first": [first], "second": [second]})
        for step in run.steps(10):
            factor = math.nan if step.index == spoil else step.index + 1.0
            terms = Terms(one=(1.0, 3 * first.sum() + factor * second.sum()))
            optimizer.zero_grad()
            terms.total.backward()
            step.observe(terms)
            step.update(optimizer, clip=clip)
    return read_history(folder)


def test_the_factor_of_clipping_is_recorded_at_every_step(tmp_path):
    history = clipped_run(tmp_path, 5.0)
    norms = history["Gradients/total_norm"].values
    assert norms[3] == 5.0
    np.testing.assert_allclose(history["Gradients/clip_scale"].values, np.minimum(5.0 / norms, 1.0), rtol=1e-6)
    assert history["Gradients/clip_scale"].steps.tolist() == list(range(10))


def test_limits_by_group_have_a_factor_each(tmp_path):
    history = clipped_run(tmp_path, {"second": 4.0})
    factors = history["Gradients/second_clip_scale"].values
    np.testing.assert_allclose(factors, [1, 1, 1, 1, *(4 / norm for norm in range(5, 11))], rtol=1e-6)
    assert {"Gradients/clip_scale", "Gradients/first_clip_scale"}.isdisjoint(history.names())


def test_without_a_limit_there_is_no_factor(tmp_path):
    assert [name for name in clipped_run(tmp_path, None).names() if name.endswith("clip_scale")] == []


@pytest.mark.parametrize("clip", [1.0, {"second": 1.0}])
def test_the_factor_of_a_refused_step_is_not_that_of_a_clipped_one(tmp_path, clip):
    history = clipped_run(tmp_path, clip, spoil=6)
    (name,) = [name for name in history.names() if name.endswith("clip_scale")]
    assert np.flatnonzero(~(history[name].values > 0)).tolist() == [6]
    assert np.flatnonzero(history["Guard/refused"].values).tolist() == [6]


def test_a_loss_alone_is_refused_with_what_to_write_instead(tmp_path):
    weight = torch.nn.Parameter(torch.zeros(1))
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=())) as run:
        run.track(groups={"weight": [weight]})
        step = run.begin_step()
        # That of step.observe(...) is the same, but in tests its annotation is checked first.
        with pytest.raises(TypeError, match=r"got a Tensor.*Terms\(loss=\(1\.0, loss\)\)"):
            step.backward(lambda _: weight.sum(), None)
        run.end_step()
