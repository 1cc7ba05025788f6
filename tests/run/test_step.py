"""Texts recorded by a step."""

import torch

from fieldwatch import Outputs, Run, Saving, Terms


class Shown:
    """A sink that stores the texts it receives."""

    def __init__(self):
        self.texts = []

    def __call__(self, block):
        pass

    def text(self, name, position, markdown):
        self.texts.append((name, position, markdown))


def test_a_text_is_sent_to_every_sink_that_supports_text(tmp_path):
    weight, sink = torch.nn.Parameter(torch.zeros(1)), Shown()
    with Run(tmp_path, saving=Saving(every=None), outputs=Outputs(rules=(), sinks=(sink, lambda _: None))) as run:
        run.track(groups={"weight": [weight]})
        for step in run.steps(2):
            step.observe(Terms(one=(1.0, weight.sum())))
            step.text("Training_Guide", f"# {step.index}")
        step.text("Training_Guide", "later", position=7)
    assert sink.texts == [("Training_Guide", 0, "# 0"), ("Training_Guide", 1, "# 1"), ("Training_Guide", 7, "later")]
