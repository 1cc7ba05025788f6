import subprocess
import sys

import numpy as np
import pytest
from scipy.spatial import cKDTree

from fieldwatch.recon.mesh import MeshError, OrientedPoints, poisson_surface, read_mesh


def on_sphere(count, seed=0):
    places = np.random.default_rng(seed).normal(size=(count, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    colors = np.where(places[:, :1] > 0, [[255, 0, 0]], [[0, 0, 255]]).astype(np.uint8)
    return OrientedPoints(points=places, normals=places, colors=colors)


def upper(points):
    return points.chosen(points.points[:, 2] > 0)


def on_mesh(mesh, count, seed=0):
    generator = np.random.default_rng(seed)
    face = generator.choice(len(mesh.faces), count, p=mesh.areas / mesh.areas.sum())
    shares = generator.dirichlet([1, 1, 1], count)
    return (mesh.corners[face] * shares[:, :, None]).sum(1), mesh.normals[face]


def off_sphere(surface):
    return (np.linalg.norm(surface.mesh.vertices, axis=1) - 1) / surface.cell


def test_exact_points_of_a_sphere():
    surface = poisson_surface(on_sphere(100_000), resolution=128)
    assert (surface.mesh.closed, surface.mesh.outward, surface.mesh.pieces.max()) == (True, True, 0)
    assert np.sqrt(np.square(off_sphere(surface)).mean()) < 0.05
    assert surface.mesh.signed_volume == pytest.approx(4 / 3 * np.pi, rel=1e-3)


def test_density_counts_the_samples_of_a_cell():
    surface = poisson_surface(on_sphere(20_000), resolution=64)
    assert np.median(surface.density) * 4 * np.pi / surface.cell**2 == pytest.approx(20_000, rel=0.1)


def test_vertices_have_the_colors_of_the_nearest_points():
    surface = poisson_surface(on_sphere(5_000), resolution=48)
    assert surface.mesh.colors is not None
    sides = surface.mesh.vertices[:, 0]
    clear = np.abs(sides) > 0.1
    assert (surface.mesh.colors[clear, 0] == np.where(sides[clear] > 0, 255, 0)).all()


def test_few_points_on_a_fine_grid_still_close():
    surface = poisson_surface(on_sphere(400), resolution=128)
    assert (surface.mesh.closed, surface.mesh.pieces.max()) == (True, 0)
    assert np.abs(off_sphere(surface)).max() * surface.cell < 0.05


def test_screening_mends_uneven_samples_with_wrong_normals():
    generator = np.random.default_rng(1)
    whole = on_sphere(100_000)
    thin = whole.chosen(generator.random(len(whole)) < np.where(whole.points[:, 0] > 0, 0.24, 0.005))
    normals = thin.normals + 0.3 * generator.normal(size=thin.normals.shape)
    points = OrientedPoints(points=thin.points, normals=normals / np.linalg.norm(normals, axis=1, keepdims=True))
    errors = [np.square(off_sphere(poisson_surface(points, resolution=96, screening=s))).mean() for s in (0, 1)]
    assert errors[1] < 0.7 * errors[0]


@pytest.mark.parametrize("noise", [0.0, 0.005])
def test_a_real_mesh(real_data, noise):
    spot = read_mesh(real_data / "meshes/spot/spot_triangulated.obj").welded()
    diagonal = np.linalg.norm(np.ptp(spot.vertices, axis=0))
    places, normals = on_mesh(spot, 100_000)
    places = places + noise * diagonal * np.random.default_rng(2).normal(size=places.shape)
    surface = poisson_surface(OrientedPoints(points=places, normals=normals), resolution=128)
    distance, _ = cKDTree(on_mesh(spot, 300_000, seed=1)[0]).query(surface.mesh.vertices)
    assert (surface.mesh.closed, surface.mesh.outward, surface.mesh.pieces.max()) == (True, True, 0)
    assert distance.mean() < 0.002 * diagonal
    first, second = surface.mesh.normals[surface.mesh.edges.neighbors].transpose(1, 0, 2)
    assert np.einsum("ij,ij->i", first, second).mean() > 0.98


def test_half_a_sphere_closes_and_stays_at_its_points():
    surface = poisson_surface(upper(on_sphere(40_000)), resolution=96)
    assert (surface.mesh.closed, surface.mesh.outward) == (True, True)
    high = surface.mesh.vertices[:, 2] > 0.2
    assert np.abs(off_sphere(surface)[high]).max() < 0.5


def test_space_that_was_seen_empty_stays_empty():
    below = 0.3

    def seen(places):  # a box that ends below the middle, and the sphere
        return np.maximum(np.linalg.norm(places, axis=1) - 1, np.abs(places).max(1) - below)

    def shown(places):
        return places[:, 2] - below

    surface = poisson_surface(upper(on_sphere(40_000)), resolution=96, outside=shown)
    assert (surface.mesh.closed, surface.mesh.outward) == (True, True)
    assert surface.mesh.vertices[:, 2].max() <= below + 1.5 * surface.cell
    assert seen(np.zeros((1, 3)))[0] < 0


def test_half_a_box_keeps_within_what_was_seen():
    generator = np.random.default_rng(0)
    parts = []
    for axis in range(3):
        for side in (-1.0, 1.0):
            if (axis, side) != (2, -1.0):
                places = generator.uniform(-1, 1, (5_000, 3))
                normals = np.zeros((5_000, 3))
                places[:, axis] = normals[:, axis] = side
                parts.append(OrientedPoints(points=places, normals=normals))
    box = OrientedPoints.joined(*parts)
    surface = poisson_surface(box, resolution=96, outside=lambda places: np.abs(places).max(1) - 1)
    assert (surface.mesh.closed, surface.mesh.outward) == (True, True)
    assert np.abs(surface.mesh.vertices).max() < 1 + 1.5 * surface.cell
    assert surface.mesh.signed_volume == pytest.approx(8, rel=0.05)


def test_progress_is_told():
    stages = []
    poisson_surface(on_sphere(500), resolution=32, on_progress=lambda stage, share: stages.append((stage, share)))
    assert [stage for stage, _ in stages] == ["splat", "solve", "screen", "surface"]
    assert all(0 <= share <= 1 for _, share in stages)


def test_no_points_is_a_clear_message():
    none = OrientedPoints(points=np.empty((0, 3)), normals=np.empty((0, 3)))
    with pytest.raises(MeshError, match=r"at least 16 points, got 0"):
        poisson_surface(none)


def test_all_points_at_one_place_is_a_clear_message():
    same = OrientedPoints(points=np.zeros((20, 3)), normals=np.tile([0.0, 0.0, 1.0], (20, 1)))
    with pytest.raises(MeshError, match="all 20 points"):
        poisson_surface(same)


def test_a_resolution_too_low_is_refused():
    with pytest.raises(MeshError, match="at least 32"):
        poisson_surface(on_sphere(100), resolution=8)


def test_a_grid_that_does_not_fit_names_one_that_does():
    points = on_sphere(1_000)
    with pytest.raises(MeshError, match=r"resolution 256 .* needs \d+ MiB, .* 32 MiB.*of \d+"):
        poisson_surface(points, memory=32 << 20)
    with pytest.raises(MeshError, match="no useful resolution"):
        poisson_surface(points, memory=1 << 16)


def test_the_named_resolution_fits():
    points = on_sphere(1_000)
    with pytest.raises(MeshError) as refused:
        poisson_surface(points, memory=8 << 20)
    resolution = int(str(refused.value).split("a resolution of ")[1].split()[0])
    assert poisson_surface(points, resolution=resolution, memory=8 << 20).mesh.closed


def test_memory_is_what_was_promised():
    program = (
        "import numpy as np, re, pathlib\n"
        "from fieldwatch.recon.mesh import OrientedPoints, poisson_surface\n"
        "from fieldwatch.recon.mesh.poisson_grid import grid_around, memory_needed\n"
        "def peak(): return int(re.search(r'VmHWM:\\s+(\\d+)', pathlib.Path('/proc/self/status').read_text())[1])\n"
        "p = np.random.default_rng(0).normal(size=(20000, 3))\n"
        "p /= np.linalg.norm(p, axis=1, keepdims=True)\n"
        "p = OrientedPoints(points=p, normals=p)\n"
        "poisson_surface(p, resolution=32)\n"
        "before = peak()\n"
        "poisson_surface(p, resolution=192)\n"
        "after = peak()\n"
        "print((after - before) * 1024, memory_needed(grid_around(p.points, 192), len(p)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    used, promised = map(int, ran.stdout.split())
    assert 0.4 * promised < used <= promised
