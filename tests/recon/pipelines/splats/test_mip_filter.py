"""The 3D filter: as wide as a pixel of the photo with the highest sampling rate."""

import pytest
import torch

from fieldwatch.recon.pipelines.splats.mip_filter import VARIANCE, MipFilter, filter_widths
from fieldwatch.recon.render import View


def view(distance: float, focal: float = 100.0) -> View:
    pose = torch.eye(4)
    pose[2, 3] = distance
    return View(camera_from_world=pose, fx=focal, fy=focal, cx=32.0, cy=32.0, width=64, height=64)


def test_the_width_is_a_share_of_a_pixel_at_the_depth() -> None:
    widths = filter_widths(torch.zeros(1, 3), [view(4.0)])

    assert widths.item() == pytest.approx(VARIANCE**0.5 * 4.0 / 100.0)


def test_the_nearest_camera_decides() -> None:
    near = filter_widths(torch.zeros(1, 3), [view(2.0)])
    far = filter_widths(torch.zeros(1, 3), [view(8.0)])

    assert torch.equal(filter_widths(torch.zeros(1, 3), [view(8.0), view(2.0)]), near)
    assert far == pytest.approx(4 * near)


def test_what_no_camera_sees_gets_the_widest_filter_of_the_seen() -> None:
    means = torch.tensor([[0.0, 0.0, 0.0], [0.0, 0.0, 4.0], [50.0, 0.0, 0.0], [0.0, 0.0, -9.0]])
    widths = filter_widths(means, [view(4.0)])

    assert widths[1] == pytest.approx(2 * widths[0])
    assert widths[2] == widths[3] == widths[1]


def test_where_nothing_is_seen_nothing_is_filtered() -> None:
    assert not filter_widths(torch.tensor([[0.0, 0.0, -9.0]]), [view(4.0)]).any()


def test_cameras_are_needed() -> None:
    with pytest.raises(ValueError, match="no cameras"):
        filter_widths(torch.zeros(1, 3), [])


def test_a_checkpoint_holds_widths_of_any_number() -> None:
    detail = MipFilter([view(4.0)], torch.zeros(3, 3))
    stored = detail.state_dict()
    other = MipFilter([view(2.0)], torch.zeros(5, 3))
    other.load_state_dict(stored)

    assert torch.equal(other.widths, detail.widths)
    other.update(torch.zeros(2, 3))
    assert len(other.widths) == 2
