"""A batch in parts has the same loss, errors and gradients as the whole batch."""

import pytest
import torch

from fieldwatch import MicroBatches, Terms
from fieldwatch.recon.pipelines.video.config import VideoConfig
from fieldwatch.recon.pipelines.video.models import Prediction, Query
from fieldwatch.recon.pipelines.video.objective import video_terms
from fieldwatch.recon.pipelines.video.scene import VideoBatch

UNITS = 5
STANDS_IN = [False, True, False, False, True]


@pytest.fixture
def drawn():
    make = torch.Generator().manual_seed(0)
    shapes = ((UNITS, 3, 12, 12), (UNITS, 1, 4))
    rgb, embedding = (torch.rand(shape, generator=make, requires_grad=True) for shape in shapes)
    truth, wanted = (torch.rand(shape, generator=make) for shape in shapes)
    return rgb, embedding, truth, wanted


def learn(drawn, count, loss):
    rgb, embedding, truth, wanted = drawn
    config = VideoConfig(loss=loss, pixel_weight=2.0, between_weight=0.5, clip_loss_weight=0.1)
    found = []
    rgb.grad = embedding.grad = None
    for part in MicroBatches("batch", count=count).slices(UNITS):
        zeros = torch.zeros(part.stop - part.start, dtype=torch.float64)
        batch = VideoBatch(
            query=Query(t=zeros, x=zeros, y=zeros),
            rgb=truth[part],
            embedding=wanted[part],
            names=tuple(map(str, range(UNITS)[part])),
            stands_in=tuple(STANDS_IN[part]),
        )
        prediction = Prediction(rgb=rgb[part], embedding=embedding[part])
        terms = video_terms(config, prediction, batch)
        share = len(zeros) / UNITS
        (terms.total * share).backward()
        found.append((share, terms))
    return Terms.merged(found), rgb.grad.clone(), embedding.grad.clone()


@pytest.mark.parametrize("loss", ["L2", "L1", "Fusion6"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_parts_add_up_to_the_whole_batch(drawn, loss, count):
    whole, *gradients = learn(drawn, 1, loss)
    parts, *others = learn(drawn, count, loss)
    assert set(parts) == set(whole) == {"pixel", "between", "clip"}
    for name, (weight, value) in whole.items():
        assert parts[name].weight == pytest.approx(weight)
        assert parts[name].value == pytest.approx(float(value), rel=1e-5)
    assert float(parts.total) == pytest.approx(float(whole.total), rel=1e-5)
    for mine, theirs in zip(gradients, others, strict=True):
        torch.testing.assert_close(mine, theirs)
