"""Plain backdrop: its color becomes the background and gets no points; other photos keep a black background."""

from collections.abc import Callable

import pytest
import torch
from jaxtyping import UInt8
from torch import Tensor

from fieldwatch.recon.data import PhotoSet, solid_photos
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.pipelines.splats.backdrop import plain_backdrop
from fieldwatch.recon.pipelines.splats.filling import Filling, fill_gaps

SIZE = 32
GRAY = (200, 210, 220)
SET = solid_photos(views=6, size=SIZE, held_out=3, points=100)


def photos(paint: Callable[[UInt8[Tensor, "height width 3"], int], None], **known: bool) -> PhotoSet:
    """Return photos of a dark object on gray, changed by a function of the image and the number of the photo."""

    def read(index: int) -> PhotoPixels:
        assert index in SET.train
        image = torch.tensor(GRAY, dtype=torch.uint8).expand(SIZE, SIZE, 3).clone()
        image[8:24, 8:24] = 30
        paint(image, index)
        return PhotoPixels(image=image)

    return SET.having(read=read, **{"masked": False, "transparent": False, **known})


def nothing(_image: Tensor, _index: int) -> None:
    """Leave the photo as it is."""


def noise(image: Tensor, index: int) -> None:
    image += torch.randint(0, 9, image.shape, generator=torch.Generator().manual_seed(index), dtype=torch.uint8)


def table(image: Tensor, _index: int) -> None:
    image[24:] = 90


def brighter_by_photo(image: Tensor, index: int) -> None:
    image -= 30 * index


def test_the_color_around_the_object_is_the_backdrop() -> None:
    for paint in (nothing, noise):
        found = plain_backdrop(photos(paint))
        assert found is not None
        assert float((found - torch.tensor(GRAY) / 255).abs().max()) < 9 / 255


@pytest.mark.parametrize("paint", [table, brighter_by_photo])
def test_borders_of_several_colors_are_no_backdrop(paint: Callable[[Tensor, int], None]) -> None:
    assert plain_backdrop(photos(paint)) is None


@pytest.mark.parametrize("known", ["masked", "transparent"])
def test_masks_and_alpha_define_the_object_themselves(known: str) -> None:
    assert plain_backdrop(photos(nothing, **{known: True})) is None


def test_a_backdrop_gets_no_points() -> None:
    scene = photos(nothing)
    filling = Filling(count=200, gap=0.05)
    _, everywhere = fill_gaps(scene, filling)
    _, on_object = fill_gaps(scene, filling, backdrop=plain_backdrop(scene))

    assert {30, 200} == set(everywhere[:, 0].tolist())
    assert {30} == set(on_object[:, 0].tolist())
