"""A batch in parts has the loss, the errors and the gradients of the whole batch."""

import pytest
import torch

from fieldwatch import Parts
from fieldwatch.pipelines.video.config import VideoConfig
from fieldwatch.pipelines.video.models import Prediction, Query
from fieldwatch.pipelines.video.objective import Drawn, unit_errors, video_terms
from fieldwatch.pipelines.video.scene import Batch

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
    config, found = VideoConfig(loss=loss, pixel_weight=2.0, between_weight=0.5, clip_loss_weight=0.1), []
    rgb.grad = embedding.grad = None
    for part in Parts("batch", count=count).slices(UNITS):
        zeros = torch.zeros(part.stop - part.start, dtype=torch.float64)
        batch = Batch(
            query=Query(t=zeros, x=zeros, y=zeros),
            rgb=truth[part],
            embedding=wanted[part],
            names=tuple(map(str, range(UNITS)[part])),
        )
        prediction, stands_in = Prediction(rgb=rgb[part], embedding=embedding[part]), STANDS_IN[part]
        terms, share = video_terms(config, prediction, batch, stands_in), len(zeros) / UNITS
        (terms.total * share).backward()
        found.append(Drawn.of(share, terms, unit_errors(prediction, batch), batch.names, stands_in))
    return Drawn.joined(found), rgb.grad.clone(), embedding.grad.clone()


@pytest.mark.parametrize("loss", ["L2", "L1", "Fusion6"])
@pytest.mark.parametrize("count", [2, 3, 5])
def test_parts_add_up_to_the_whole_batch(drawn, loss, count):
    whole, *gradients = learn(drawn, 1, loss)
    parts, *others = learn(drawn, count, loss)
    assert list(parts.terms) == list(whole.terms) == ["pixel", "between", "clip"]
    for name, (weight, value) in whole.terms.items():
        assert parts.terms[name].weight == pytest.approx(weight)
        assert parts.terms[name].value == pytest.approx(float(value), rel=1e-5)
    assert float(parts.terms.total) == pytest.approx(float(whole.terms.total), rel=1e-5)
    assert torch.equal(parts.errors, whole.errors)
    assert (parts.names, parts.stands_in) == (whole.names, whole.stands_in) == (tuple("01234"), tuple(STANDS_IN))
    for mine, theirs in zip(gradients, others, strict=True):
        torch.testing.assert_close(mine, theirs)
