"""The model passes the background to the renderer without reading it from the device."""

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fieldwatch.recon.pipelines.splats import model as module
from fieldwatch.recon.pipelines.splats.gaussians import Gaussians
from fieldwatch.recon.pipelines.splats.model import SplatModel


class _Reads(TorchDispatchMode):
    """Counts the values that are read from a device: on CUDA, each read waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        del types
        self.count += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(("level", "composited"), [(0.0, False), (1.0, True)])
def test_a_render_does_not_read_the_background(monkeypatch, tiny_photos, level, composited):
    gaussians = Gaussians.from_points(tiny_photos.points, tiny_photos.colors, degree=1, opacity=0.7)
    model = SplatModel(gaussians, torch.full((3,), 1 - level))
    model.background = torch.full((3,), level)
    view = module.view_of(tiny_photos.cameras[0], torch.device("cpu"))
    output = model.render(view)
    given = []

    def rendered(*_: Any, background: Any, **__: Any) -> Any:
        given.append(background)
        return output

    monkeypatch.setattr(module, "render_in_bands", rendered)
    with _Reads() as reads:
        model.render(view)
    assert reads.count == 0
    assert given == ([model.background] if composited else [None])
