"""Mesh of one region from surface points: what is skipped, and the notes about it."""

import numpy as np
import pytest

from fieldwatch.recon.mesh import MeshError, OrientedPoints
from fieldwatch.recon.pipelines.splats import ExtractOptions
from fieldwatch.recon.pipelines.splats.meshing.budget import MemoryBudget
from fieldwatch.recon.pipelines.splats.meshing.regions import MeshRegion, poisson_region, refuse_empty


def nowhere(places: np.ndarray) -> np.ndarray:
    return np.full(len(places), -np.inf)


def region_of(points: OrientedPoints, *, empty=nowhere, on_progress=lambda _, __: None, **changes) -> MeshRegion:
    options = ExtractOptions(**changes)
    return poisson_region(
        "foreground", points, options, resolution=40, budget=MemoryBudget(None), empty=empty, on_progress=on_progress
    )


@pytest.fixture(scope="module")
def ball(given) -> OrientedPoints:
    normals = given.evenly(6000).double().numpy()
    normals /= np.linalg.norm(normals, axis=1, keepdims=True)
    return OrientedPoints(points=0.5 * normals, normals=normals, colors=np.full((6000, 3), 7, np.uint8))


def test_points_give_a_closed_mesh_that_faces_out_in_their_color(ball) -> None:
    told: list[str] = []
    part = region_of(ball, on_progress=lambda stage, _: told.append(stage))
    assert part.mesh is not None
    assert part.mesh.closed
    assert part.mesh.outward
    assert (part.mesh.colors == 7).all()
    assert all(stage.startswith("foreground: ") for stage in told)


def test_lonely_points_give_nothing_of_their_own(ball) -> None:
    away = OrientedPoints(points=np.full((1, 3), 9.0), normals=np.eye(3)[:1], colors=np.zeros((1, 3), np.uint8))
    part = region_of(OrientedPoints.joined(ball, away))
    assert part.mesh is not None
    assert np.abs(part.mesh.vertices).max() < 0.6


def test_too_few_points_are_a_part_without_a_mesh_that_says_so(ball) -> None:
    part = region_of(ball.chosen(np.arange(6000) < 99))
    assert part.mesh is None
    (note,) = part.notes
    assert note.startswith("the foreground has 99")
    assert note.endswith("with --bbox")


def test_what_was_seen_to_be_empty_stays_empty(ball) -> None:
    """Half a ball is closed by a dome; cameras have seen that the space below the middle is empty."""
    half = ball.chosen(ball.points[:, 2] > 0)

    def below(places: np.ndarray) -> np.ndarray:
        return -places[:, 2]

    open_part, free, carved = (
        region_of(half, empty=empty, unseen=unseen).mesh
        for empty, unseen in ((nowhere, "trim"), (nowhere, "close"), (below, "close"))
    )
    assert not open_part.closed
    assert free.closed
    assert carved.closed
    assert carved.vertices[:, 2].min() > -0.1
    assert carved.vertices[:, 2].min() > free.vertices[:, 2].min() + 0.03


def test_no_region_at_all_is_refused_with_the_notes_of_each(ball) -> None:
    foreground = MeshRegion(name="foreground", mesh=None, notes=("one",))
    background = MeshRegion(name="background", mesh=None, notes=("two",))
    with pytest.raises(MeshError, match="one; two"):
        refuse_empty([foreground, background])
    refuse_empty([foreground, region_of(ball)])
