"""Plain surroundings: found around an object that stands on something, but not on the object or in textured photos."""

import math
from collections.abc import Callable

import pytest
import torch
from jaxtyping import Float, UInt8
from torch import Tensor

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera, ring, target_ball
from fieldwatch.recon.pipelines.splats.hull import VisualHull
from fieldwatch.recon.pipelines.splats.surroundings import Surroundings, plain_surroundings

SIZE = 64
RADIUS = 0.5
TABLE = 1.2
GRAY = torch.tensor([150.0, 156.0, 164.0])
COUNT = 16
LENS = {"width": SIZE, "height": SIZE, "fx": 1.2 * SIZE, "fy": 1.2 * SIZE, "cx": SIZE / 2, "cy": SIZE / 2}
CAMERAS = tuple(
    Camera(name=f"{i:02d}.png", world_from_camera=pose, **LENS)
    for i, pose in enumerate(ring(COUNT, radius=2.2, height=0.9))
)


def checks(points: Float[Tensor, "*n 3"]) -> Float[Tensor, "*n 3"]:
    """Return colors of cells, by their position."""
    cells = (points / 0.12).floor()
    return 30 + 200 * torch.frac(torch.sin(cells @ torch.tensor([12.9898, 78.233, 37.719]))[..., None].abs() * 999)


def picture(index: int, gain: float) -> UInt8[Tensor, "height width 3"]:
    """Return a photo of a ball on a round table before gray; of an exposure."""
    origins, directions = (ray.float() for ray in CAMERAS[index].rays())
    along = -(origins * directions).sum(-1)
    apart = (origins + along[..., None] * directions).norm(dim=-1)
    to_ball = along - (RADIUS**2 - apart.square()).clamp_min(0).sqrt()
    to_table = (-RADIUS - origins[..., 2]) / directions[..., 2]
    on_table = origins + to_table[..., None] * directions
    colors = GRAY.expand(SIZE, SIZE, 3).clone()
    table = (to_table > 0) & (on_table[..., :2].norm(dim=-1) < TABLE)
    colors[table] = checks(on_table)[table].expand(-1, 3)
    ball = apart < RADIUS
    colors[ball] = checks(origins + to_ball[..., None] * directions)[ball].expand(-1, 3)
    return (gain * colors).round().clamp(0, 255).to(torch.uint8)


def unchanged(image: Tensor, index: int) -> None:
    """Leave the photo as it is."""


def photos(paint: Callable[[Tensor, int], None] = unchanged, **known: bool) -> PhotoSet:
    """Return photos whose exposure differs by half a stop, changed by a function of image and index."""

    def read(index: int) -> PhotoPixels:
        image = picture(index, 2 ** (0.5 * math.sin(index)))
        paint(image, index)
        return PhotoPixels(image=image)

    return PhotoSet(
        cameras=CAMERAS,
        read=read,
        points=torch.zeros(0, 3),
        colors=torch.zeros(0, 3, dtype=torch.uint8),
        train=tuple(range(COUNT)),
        test=(),
        source="a ball on a table",
        **{"masked": False, "transparent": False, **known},
    )


def found_in(scene: PhotoSet) -> Surroundings | None:
    ball = target_ball(CAMERAS)
    assert ball is not None
    return plain_surroundings(scene, ball)


def test_gray_around_a_table_is_found_whatever_the_exposure() -> None:
    found = found_in(photos())
    assert found is not None
    ratios = torch.from_numpy(found.color) / (GRAY / 255)
    assert 2**-0.5 < float(ratios.min()) <= float(ratios.max()) < 2**0.5
    assert float(ratios.max() - ratios.min()) < 0.01
    shown = torch.stack([found.in_photo(i, SIZE, SIZE) for i in range(COUNT)])
    gray = torch.stack([(picture(i, 1.0).float() == GRAY).all(-1) for i in range(COUNT)])
    # Some cells of table and ball have nearly the same gray.
    assert float((shown & ~gray).sum() / gray.sum()) < 0.005
    # All but the pixels beside an edge.
    assert float(shown.sum() / gray.sum()) > 0.85


def test_its_hull_keeps_ball_and_table_and_carves_a_shell() -> None:
    surroundings = found_in(photos())
    assert surroundings is not None
    hull = VisualHull.of_backgrounds(CAMERAS, [surroundings.in_photo(i, SIZE, SIZE) for i in range(COUNT)])
    turns = torch.linspace(0, 2 * math.pi, 25, dtype=torch.float64)[:-1]
    circle = torch.stack([turns.cos(), turns.sin(), torch.zeros_like(turns)], -1)
    down = torch.tensor([0.0, 0.0, -RADIUS])
    for kept in (0.98 * RADIUS * circle, 0.98 * TABLE * circle + down):
        assert not hull.outside(kept.numpy()).any()
    for shell in (0.75 * circle + torch.tensor([0.0, 0.0, 0.4]), 0.9 * circle + torch.tensor([0.0, 0.0, 0.6])):
        assert hull.outside(shell.numpy()).all()


def textured(image: Tensor, index: int) -> None:
    noise = torch.randint(0, 60, image.shape, generator=torch.Generator().manual_seed(index), dtype=torch.uint8)
    image //= 2
    image += noise


def another_color_in_each(image: Tensor, index: int) -> None:
    gray = (image.float() - image[0, 0].float()).abs().amax(-1) < 1
    image[gray] = torch.tensor([90 + 10 * index, 240 - 10 * index, 80], dtype=torch.uint8)


def plain_object(image: Tensor, index: int) -> None:
    """A plain thing that fills the photos: what the cameras look at."""
    image[:] = torch.tensor([200, 190, 180], dtype=torch.uint8)


@pytest.mark.parametrize("paint", [textured, another_color_in_each, plain_object])
def test_other_photos_have_none(paint: Callable[[Tensor, int], None]) -> None:
    assert found_in(photos(paint)) is None


@pytest.mark.parametrize("known", ["masked", "transparent"])
def test_masks_and_alpha_define_the_object_themselves(known: str) -> None:
    assert found_in(photos(**{known: True})) is None
