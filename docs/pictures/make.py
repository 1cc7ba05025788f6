"""Draws the pictures of README and docs.

    python docs/pictures/make.py VIDEO_RUN SPLATS_RUN PLUSH_RUN PLUSH_MESH
    python docs/pictures/make.py NORMALS_RUN

The first two folders are those that `make demo` and `fieldwatch train splats` print. The others are of the snowmiku
photos: `fieldwatch train splats -s FOLDER --preset cpu`, and of it `fieldwatch mesh extract --no-background --bbox
-3 -1.3 1.6 0.9 2.6 5.2` and `fieldwatch mesh texture`. The last is of spot:
`fieldwatch data render-normals`, `fieldwatch train normals --preset cpu`.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image

from fieldwatch.geometry import Camera, looked_at
from fieldwatch.mesh import MeshPainter, read_mesh
from fieldwatch.pipelines import normals, splats, video
from fieldwatch.pipelines.video.show import worst_frame

HERE = Path(__file__).parent
SIDES = 4


def draw_video(run: Path) -> None:
    """Draw the worst held-out frame: truth, prediction, error."""
    stored = video.open_run(run, "last")
    evaluation = video.evaluate(stored.model, stored.scene)
    picture = worst_frame(stored.scene, "held-out", evaluation.parts["val"])
    Image.fromarray(picture).save(HERE / "demo.png")


def draw_splats(run: Path) -> None:
    """Draw colour, depth and normals of some held-out views."""
    stored = splats.open_run(run, "last")
    splats.write_geometry(stored.model, stored.scene, HERE / "splats.png")


def apart(cameras: list[Camera]) -> list[Camera]:
    """Choose cameras as far from each other as they come, none of them near, from left to right."""
    distances = [float((camera.position - looked_at(cameras)).norm()) for camera in cameras]
    cameras = [camera for camera, far in zip(cameras, distances, strict=True) if far > np.median(distances)]
    places = np.stack([camera.position.numpy() for camera in cameras])
    chosen = [0]
    while len(chosen) < SIDES:
        chosen.append(int(np.linalg.norm(places[:, None] - places[chosen], axis=2).min(1).argmax()))
    across = places @ cameras[0].world_from_camera[:3, 0].numpy()
    return [cameras[i] for i in sorted(chosen, key=lambda i: across[i])]


def draw_mesh(run: Path, mesh: Path) -> None:
    """Draw a mesh from four cameras, spread over where photos were taken: its colours, and its form alone."""
    stored = splats.open_run(run, "last")
    cameras = [camera.resized(480, 360) for camera in apart(list(stored.scene.photos.cameras))]
    painter = MeshPainter(read_mesh(mesh))
    sheet = [[painter.draw(one, shading=shading) for one in cameras] for shading in ("colour", "clay")]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in sheet])).save(HERE / "mesh.png")


def draw_normals(run: Path) -> None:
    """Draw a trained surface above the true one, from four of its views: normals and form."""
    stored = normals.open_run(run, "last")
    scene = stored.scene
    ours, truth = normals.surface_mesh(stored.model, scene, 256, world=False), scene.truth
    chosen = [scene.maps.cameras[i * len(scene.maps) // SIDES] for i in range(SIDES)]
    cameras = [camera.resized(360, 360) for camera in chosen]
    sheet = [
        [MeshPainter(mesh).draw(one, shading=shading) for shading in ("clay", "normals") for one in cameras[::2]]
        for mesh in (ours, truth)
    ]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in sheet])).save(HERE / "normals.png")


if __name__ == "__main__":
    if len(sys.argv) == 2:
        draw_normals(Path(sys.argv[1]))
        sys.exit()
    draw_video(Path(sys.argv[1]))
    draw_splats(Path(sys.argv[2]))
    draw_mesh(Path(sys.argv[3]), Path(sys.argv[4]))
