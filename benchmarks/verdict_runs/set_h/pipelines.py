"""Plants and healthy runs of the pipelines: photos of a stall and of a toy, normal maps of a vase, frames of a film."""

import dataclasses
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from PIL import Image, ImageDraw

from fieldwatch.recon.data import PhotoSet
from fieldwatch.recon.data.colmap import write_colmap
from fieldwatch.recon.data.photos import PhotoPixels
from fieldwatch.recon.geometry import Camera, look_at
from verdict_runs import scenes
from verdict_runs.cases import Healthy, Plant
from verdict_runs.commands import NORMALS, SPLATS, VIDEO, Command, run_command, spot_normals
from verdict_runs.phrases import ALL, BLOWN, LOUD, SETTINGS, fault
from verdict_runs.scenes import Spoil, normal_files, observe, photos_of, read_registered, write_registered

Array = np.ndarray

POSE = r"pose|camera|reproject|registered|match|cover|view|convention"


HELD_OUT = 4
"""Every fourth photo is held out; photos are spoilt for the training alone, so that the figure is of sound ones."""
HELD_FRAME = 7
"""Of eight frames, this one is held out."""


# Photos


def stall(views: int, size: int, points: int, *, moved: float = 0.0, bent: float = 0.0) -> Spoil:
    """Return what writes photos of fruit on a round table as a COLMAP folder.

    Args:
        views: number of photos.
        size: width and height of them.
        points: number of points.
        moved: how far one fruit is moved after half of the photos.
        bent: distortion of the lens that the cameras do not tell of.
    """

    def fruit(index: int) -> tuple[tuple[Array, float], ...]:
        second = np.array([-0.5, 0.5, 0.4]) + (moved if index >= views // 2 else 0.0) * np.array([0.9, -1.0, 0.0])
        return (
            (np.array([0.6, 0.25, 0.5]), 0.5),
            (second, 0.4),
            (np.array([-0.15, -0.75, 0.35]), 0.35),
            (np.array([0.1, 0.1, 1.1]), 0.3),
        )

    def shot(camera: Camera, index: int) -> tuple[Array, Array, Array]:
        pose = camera.world_from_camera.double().numpy()
        y, x = np.mgrid[0:size, 0:size] + 0.5
        local = np.stack([(x - camera.cx) / camera.fx, (y - camera.cy) / camera.fy, np.ones_like(x)], -1)
        local = local.reshape(-1, 3)
        local[:, :2] *= 1 + bent * (local[:, :2] ** 2).sum(1, keepdims=True) / 0.25
        rays = local @ pose[:3, :3].T
        rays /= np.linalg.norm(rays, axis=1, keepdims=True)
        origin = pose[:3, 3]
        down = np.where(rays[:, 2] < -1e-6, -origin[2] / np.minimum(rays[:, 2], -1e-6), np.inf)
        place = origin + np.where(np.isfinite(down), down, 0)[:, None] * rays
        distance = np.where(np.hypot(place[:, 0], place[:, 1]) < 1.7, down, np.inf)
        rings = np.sin(9 * np.hypot(place[:, 0], place[:, 1])) * np.sin(4 * np.arctan2(place[:, 1], place[:, 0]))
        colors = 0.5 + 0.4 * np.sign(rings)[:, None] * np.array([0.7, 0.2, -0.5])
        for kind, (center, radius) in enumerate(fruit(index)):
            along = rays @ (origin - center)
            inside = along**2 - ((origin - center) ** 2).sum() + radius**2
            at = np.where(inside > 0, -along - np.sqrt(np.maximum(inside, 0)), np.inf)
            closer = (at > 0) & (at < distance)
            distance = np.where(closer, at, distance)
            out = (origin + np.where(closer, at, 0)[:, None] * rays - center) / radius
            skin = 0.5 + 0.3 * np.sin(8 * out[:, 2:] + 5 * out[:, :1] + kind) + 0.15 * np.cos(np.arange(3) * 2 + kind)
            colors = np.where(closer[:, None], skin, colors)
        seen = np.isfinite(distance)
        far = np.where(seen, distance, 1)
        colors = np.where(seen[:, None], np.clip(colors, 0, 1), 0)
        return origin + far[:, None] * rays, colors, seen

    def write(folder: Path) -> None:
        cameras: list[Camera] = []
        for i in range(views):
            turn = 2 * np.pi * (i * 5 % views) / views
            place = (3.4 * np.cos(turn), 3.4 * np.sin(turn), 1.3 + 0.9 * (i % 3))
            pose = look_at(place, (0.0, 0.0, 0.4))
            lens = 1.2 * size
            cameras.append(
                Camera(
                    name=f"stall_{i:02d}",
                    width=size,
                    height=size,
                    fx=lens,
                    fy=lens,
                    cx=size / 2,
                    cy=size / 2,
                    world_from_camera=pose.float(),
                )
            )

        def read(index: int) -> PhotoPixels:
            _, colors, _ = shot(cameras[index], index)
            return PhotoPixels(image=torch.from_numpy(np.rint(255 * colors).astype(np.uint8).reshape(size, size, 3)))

        draw = np.random.default_rng(views * size)
        places: list[Array] = []
        colors: list[Array] = []
        for i, camera in enumerate(cameras):
            hit, color, seen = shot(camera, i)
            picked = draw.choice(np.flatnonzero(seen), points // views, replace=False)
            places.append(hit[picked] + 0.008 * draw.normal(size=(len(picked), 3)))
            colors.append(color[picked])
        photos = PhotoSet(
            cameras=tuple(cameras),
            read=read,
            points=torch.from_numpy(np.concatenate(places).astype(np.float32)),
            colors=torch.from_numpy(np.rint(255 * np.concatenate(colors)).astype(np.uint8)),
            train=tuple(range(views)),
            test=(),
            source="stall",
        )
        write_colmap(folder, photos)
        observe(folder, photos.cameras, photos.points)

    return write


def written_anew(other: Spoil) -> Spoil:
    """Take the photos of the training from another scene; cameras and points stay."""

    def spoil(scene: Path) -> None:
        beside = scene.parent / "other"
        other(beside)
        for i, path in enumerate(photos_of(scene)):
            if i % HELD_OUT:
                shutil.copyfile(beside / "images" / path.name, path)
        shutil.rmtree(beside)

    return spoil


def redraw(path: Path, change: Callable[[Image.Image], Image.Image]) -> None:
    """Replace a picture."""
    with Image.open(path) as image:
        whole = image.convert("RGB")
    # A link to the real data must not be written through.
    path.unlink()
    changed = change(whole)
    changed.save(path, quality=95) if path.suffix in {".jpg", ".jpeg"} else changed.save(path)


def walked_fast(scene: Path) -> None:
    """Blur the photos along a line, as of a camera that moved while the shutter was open."""

    def blurred(image: Image.Image) -> Image.Image:
        pixels = np.asarray(image, np.float32)
        reach = max(image.width // 6, 2)
        mean = np.mean([np.roll(pixels, by, axis=1) for by in range(-reach, reach + 1)], axis=0)
        return Image.fromarray(np.rint(mean).astype(np.uint8))

    for i, path in enumerate(photos_of(scene)):
        if i % HELD_OUT:
            redraw(path, blurred)


def strap(scene: Path) -> None:
    """Let the strap of the camera hang before the lens, at a slightly other place each."""

    def hung(image: Image.Image, by: int) -> Image.Image:
        width, height = image.size
        pen = ImageDraw.Draw(image)
        left = width * (0.3 + 0.06 * (by % 4))
        pen.polygon([(left, 0), (left + 0.34 * width, 0), (left + 0.2 * width, height)], fill=(18, 16, 20))
        return image

    for i, path in enumerate(photos_of(scene)):
        if i % HELD_OUT:
            redraw(path, lambda image, i=i: hung(image, i))


def other_up(scene: Path) -> None:
    """Turn the points by a quarter about x, as of a cloud exported with y up, while the cameras have z up."""
    path = scene / "sparse" / "0" / "points3D.bin"
    data = bytearray(path.read_bytes())
    at = 8
    for _ in range(int.from_bytes(data[:8], "little")):
        x, y, z = np.frombuffer(bytes(data[at + 8 : at + 32]), np.float64)
        data[at + 8 : at + 32] = np.array([x, z, -y]).tobytes()
        at += 51 + 8 * int.from_bytes(data[at + 43 : at + 51], "little")
    path.write_bytes(bytes(data))


def drifted(scene: Path) -> None:
    """Move the second half of the cameras together, as where two parts of a reconstruction were never joined."""
    records = read_registered(scene)
    for record in records[len(records) // 2 :]:
        # camera_from_world of a world that is moved: t = t - R d.
        w, x, y, z = record.pose[:4]
        rotation = np.array(
            [
                [1 - 2 * (y * y + z * z), 2 * (x * y - w * z), 2 * (x * z + w * y)],
                [2 * (x * y + w * z), 1 - 2 * (x * x + z * z), 2 * (y * z - w * x)],
                [2 * (x * z - w * y), 2 * (y * z + w * x), 1 - 2 * (x * x + y * y)],
            ]
        )
        moved = np.array(record.pose[4:]) - rotation @ np.array([0.45, -0.3, 0.15])
        record.pose = (w, x, y, z, *(float(one) for one in moved))
    write_registered(scene, records)


# Normal maps


def vase_normals(views: int, size: int, more: str) -> Spoil:
    """Return what writes normal maps of a vase with a waist and flutes."""

    def write(folder: Path) -> None:
        folder.parent.mkdir(parents=True, exist_ok=True)
        mesh = folder.parent / "vase.obj"
        rings = 28
        around = 40
        lines = [f"v 0 0 {-1.0:.6f}", f"v 0 0 {1.0:.6f}"]
        for i in range(1, rings):
            height = -np.cos(np.pi * i / rings)
            body = np.sqrt(max(1 - height**2, 0)) * (0.6 + 0.22 * np.sin(4 * height + 0.6))
            for j in range(around):
                turn = 2 * np.pi * j / around
                radius = body * (1 + 0.08 * np.cos(7 * turn + 2 * height))
                lines.append(f"v {radius * np.cos(turn):.6f} {radius * np.sin(turn):.6f} {height:.6f}")
        for j in range(around):
            lines.append(f"f 1 {3 + (j + 1) % around} {3 + j}")
            last = 3 + (rings - 2) * around
            lines.append(f"f 2 {last + j} {last + (j + 1) % around}")
            for i in range(rings - 2):
                a = 3 + i * around + j
                b = 3 + i * around + (j + 1) % around
                lines += [f"f {a} {b} {b + around}", f"f {a} {b + around} {a + around}"]
        mesh.write_text("\n".join(lines) + "\n")
        words = f"--views {views} --size {size} --format npy --depth none {more}"
        run_command(["data", "render-normals", str(mesh), "--out", str(folder), *words.split()])

    return write


def for_a_screen(folder: Path) -> None:
    """Store the maps as a picture for a screen is stored: each channel of 0 to 1 to the power of 1 / 2.2."""
    for path in normal_files(folder):
        normals = np.load(path)
        channels = np.clip(0.5 + 0.5 * normals, 0, 1) ** (1 / 2.2)
        lit = np.linalg.norm(normals, axis=-1, keepdims=True) > 0.5
        read = np.where(lit, 2 * channels - 1, 0)
        np.save(path, (read / np.maximum(np.linalg.norm(read, axis=-1, keepdims=True), 1e-6)).astype(np.float32))


def against_the_rays(folder: Path) -> None:
    """Give the normals as seen along the ray of each pixel, as estimators without perspective do."""
    with np.load(folder / "cameras_sphere.npz") as stored:
        matrix = stored["world_mat_0"].astype(np.float64)
    # The size of the rows of the projection is the focal length, but for the principal point.
    focal = float(np.sqrt(max((matrix[0, :3] ** 2).sum() - (matrix[0, :3] @ matrix[2, :3]) ** 2, 1e-9)))
    for path in normal_files(folder):
        normals = np.load(path).astype(np.float64)
        height, width = normals.shape[:2]
        y, x = np.mgrid[0:height, 0:width]
        # Axes of OpenGL: x to the right, y up, z to the viewer.
        to_viewer = np.stack([-(x - (width - 1) / 2) / focal, (y - (height - 1) / 2) / focal, np.ones_like(x)], -1)
        to_viewer /= np.linalg.norm(to_viewer, axis=-1, keepdims=True)
        right = np.cross(np.broadcast_to([0.0, 1.0, 0.0], to_viewer.shape), to_viewer)
        right /= np.linalg.norm(right, axis=-1, keepdims=True)
        up = np.cross(to_viewer, right)
        seen = np.stack([(normals * axis).sum(-1) for axis in (right, up, to_viewer)], -1)
        np.save(path, seen.astype(np.float32))


def beside_the_sphere(folder: Path) -> None:
    """Move the sphere in which the object is searched, as if its center had been read in another unit."""
    path = folder / "cameras_sphere.npz"
    with np.load(path) as stored:
        cameras = {key: value.copy() for key, value in stored.items()}
    for key, matrix in cameras.items():
        if key.startswith("scale_mat_") and "inv" not in key:
            matrix[:3, 3] += np.array([0.55, -0.4, 0.3]) * matrix[0, 0]
    np.savez(path, **{key: value for key, value in cameras.items() if "inv" not in key})


def shadows_cut_out(folder: Path) -> None:
    """Cut the darker side out of all masks, as a threshold of the brightness does."""
    for path, normals in zip(sorted((folder / "mask").glob("*.png")), normal_files(folder), strict=True):
        with Image.open(path) as image:
            pixels = np.asarray(image).copy()
        towards_the_lamp = np.load(normals) @ np.array([0.8, 0.4, 0.45])
        pixels[towards_the_lamp < 0.05] = 0
        Image.fromarray(pixels).save(path)


# Frames


def market_frames(count: int, height: int = 24, width: int = 48, *, later: float = 0.0) -> Spoil:
    """Return what writes a clip of lanterns that swing before a wall, while the camera pans.

    Args:
        count: number of frames.
        height: height of them.
        width: width of them.
        later: time at the even rows, in frames: the fields of an interlaced film are half a frame apart.
    """

    def write(folder: Path) -> None:
        folder.mkdir(parents=True)
        y, x = (np.mgrid[0:height, 0:width] + 0.5) / height
        for i in range(count):
            time = i + later * (np.arange(height) % 2 == 0)[:, None]
            pan = x + 0.03 * time
            bricks = 0.55 + 0.25 * np.sign(np.sin(11 * pan) * np.sin(19 * y))
            picture = np.stack([bricks, 0.7 * bricks, 0.55 * bricks], -1) * (0.7 + 0.3 * y[..., None])
            for k, color in enumerate(((1.0, 0.8, 0.2), (0.2, 0.7, 1.0), (0.9, 0.3, 0.6))):
                swing = 0.35 * np.sin(0.45 * time + 2 * k)
                place = 0.4 + 0.6 * k + swing
                level = 0.45 + 0.1 * np.cos(0.45 * time + 2 * k) + 0.05 * k
                glow = 0.5 + 0.5 * np.tanh(16 * (0.16 - np.hypot(pan - 0.2 - place, y - level)))
                picture = glow[..., None] * np.array(color) + (1 - glow[..., None]) * picture
            Image.fromarray(np.rint(255 * np.clip(picture, 0, 1)).astype(np.uint8)).save(folder / f"{i:03d}.png")

    return write


def combed(folder: Path) -> None:
    """Take the even rows of each frame from the frame two later, as of a film with fields in the wrong order."""
    files = sorted(folder.glob("*.png"))
    frames = [np.asarray(Image.open(path).convert("RGB")) for path in files]
    for i, path in enumerate(files):
        if i % 8 == HELD_FRAME:
            continue
        rows = frames[i].copy()
        rows[::2] = frames[min(i + 2, len(files) - 1) if i % 2 else max(i - 2, 0)][::2]
        Image.fromarray(rows).save(path)


def in_the_dark(folder: Path) -> None:
    """Film in the dark, and brighten it: grain that is another one in each frame."""
    draw = np.random.default_rng(12)
    for i, path in enumerate(sorted(folder.glob("*.png"))):
        if i % 8 == HELD_FRAME:
            continue
        with Image.open(path) as image:
            pixels = np.asarray(image.convert("RGB"), np.float32)
        dark = draw.poisson(np.maximum(pixels, 1) / 255 * 9) / 9 * 255
        Image.fromarray(np.clip(np.rint(dark), 0, 255).astype(np.uint8)).save(path)


def subtitled(folder: Path) -> None:
    """Write other words over the lower half of each frame."""
    draw = np.random.default_rng(5)
    for i, path in enumerate(sorted(folder.glob("*.png"))):
        if i % 8 == HELD_FRAME:
            continue
        with Image.open(path) as image:
            picture = image.convert("RGB")
        pen = ImageDraw.Draw(picture)
        for row in (picture.height * 0.45, picture.height * 0.72):
            for column in range(1, picture.width - 3, 4):
                if draw.random() < 0.55:
                    tall = float(draw.uniform(0.1, 0.22)) * picture.height
                    pen.rectangle([column, row, column + 2, row + tall], fill=(255, 255, 255))
        picture.save(path)


STALL = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1200 --schedule-scale 0.05 --regularization none",
    write=stall(15, 36, 420),
    good=18.5,
)
TOY = Command(
    pipeline="splats",
    words=f"{SPLATS} --growth-cap 1600 --schedule-scale 0.05 --regularization none --longer-side 40",
    write=scenes.plush_scene,
    good=17.0,
)
VASE = Command(
    pipeline="normals", words=f"{NORMALS} --steps 90", write=vase_normals(9, 26, "--elevations 30 -25 5"), good=-8.0
)
VASE_CLOSE = dataclasses.replace(VASE, write=vase_normals(9, 26, "--elevations 30 -25 5 --distance 1.7"))
SPOT = Command(
    pipeline="normals", words=f"{NORMALS} --steps 100", write=spot_normals(12, 28, "--elevations 20 -20"), good=-12.0
)
LANTERNS = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=market_frames(16), good=18.8)
FILM = Command(pipeline="video", words=f"{VIDEO} --epochs 45", write=scenes.bunny_frames(20, (48, 24), 6), good=22.0)

BENT = stall(15, 36, 420, bent=0.25)

PIPELINES: tuple[Plant, ...] = (
    STALL.spoilt(
        "stall photographed in passing",
        fault(ALL, r"blur|sharp|focus|motion|photo|inconsisten", r"blur|sharp|focus|motion|photo|exclude|shutter"),
        walked_fast,
    ),
    STALL.spoilt(
        "stall strap before the lens",
        fault(
            ALL,
            r"photo|occlu|mask|black|dark|float|inconsisten|differ|close to|transient",
            r"mask|crop|photo|occlu|exclude|float",
        ),
        strap,
    ),
    STALL.spoilt(
        "stall lens bent, cameras straight",
        fault(
            ALL,
            rf"{POSE}|distort|lens|undistort|calibrat|intrinsic|focal",
            r"distort|lens|calibrat|intrinsic|camera model|COLMAP",
        ),
        written_anew(BENT),
    ),
    STALL.spoilt(
        "stall points with another axis up",
        fault(
            ALL,
            rf"{POSE}|points?\b|ax[ie]s|turn|rotat|observ",
            r"points|ax[ie]s|turn|rotat|COLMAP|export|pose|camera|convention",
        ),
        other_up,
    ),
    STALL.spoilt(
        "stall two halves never joined",
        fault(ALL, rf"{POSE}|drift|moved|observ|half", r"pose|camera|COLMAP|align|merge|register|drift|remove"),
        drifted,
    ),
    STALL.flagged(
        "stall places faster and faster",
        fault(SETTINGS, rf"learning.?rate|\brates?\b|means|{BLOWN}|update|final", r"--lr-means-final|rate.*means"),
        "--lr-means-final 0.02",
    ),
    STALL.flagged(
        "stall a tenth of the schedule",
        fault(
            SETTINGS,
            r"still (falling|improv|decreas)|short|few steps|steps|under.?(fit|train)|growth|densif|schedule|"
            r"number of gaussians|population",
            r"--schedule-scale|longer|more (steps|iterations)|schedule",
        ),
        "--schedule-scale 0.005",
    ),
    VASE.spoilt(
        "vase maps stored for a screen",
        fault(
            ALL,
            rf"{POSE}|normals?\b|gamma|sRGB|slope|facing|ax[ie]s|outline|silhouette|unit",
            r"gamma|sRGB|linear|normals?\b|map|ax[ie]s|color space|channel",
        ),
        for_a_screen,
    ),
    VASE_CLOSE.spoilt(
        "vase normals against the rays",
        fault(
            ALL,
            rf"{POSE}|normals?\b|facing|away|\bray|perspective|orthographic|ax[ie]s|disagree",
            r"\bray|perspective|orthographic|normals?\b|map|ax[ie]s|space",
        ),
        against_the_rays,
    ),
    VASE.spoilt(
        "vase beside its sphere",
        fault(
            ALL,
            rf"{POSE}|sphere|outside|center|scale_mat|hull|bound|cut",
            r"scale_mat|center|sphere|scale|move|normali[sz]",
        ),
        beside_the_sphere,
    ),
    VASE.spoilt(
        "vase shadows cut out of the masks",
        fault(ALL, rf"{POSE}|mask|silhouette|hull|object|hole", r"mask|silhouette|segment|object"),
        shadows_cut_out,
    ),
    VASE.flagged(
        "vase steps as long as the sphere",
        fault(SETTINGS, rf"step|sampl|ray|coarse|miss|sparse|{LOUD}", r"--first-step|--last-step|step"),
        "--first-step 1.0 --last-step 1.0",
    ),
    VASE.flagged(
        "vase noisy poses never learned",
        fault(SETTINGS, rf"{POSE}|noise|noisy", r"--pose-start|--learn-rotation|--rotation-noise|pose|camera"),
        "--pose-start noisy",
    ),
    VASE.flagged(
        "vase one level of the grid",
        fault(
            SETTINGS,
            r"level|resolution|coarse|detail|smooth|capacity|encod|no gradient|unchanged|never|DeadGroup",
            r"--first-levels|--levels-by|level|resolution",
        ),
        "--first-levels 1 --levels-by 3000000",
    ),
    LANTERNS.spoilt(
        "lanterns fields in the wrong order",
        fault(
            ALL,
            r"frame|field|interlac|comb|\brows?\b|lines|between|neighbou?r|order|jump",
            r"frame|field|interlac|deinterlac|\brows?\b|clip|order",
        ),
        combed,
    ),
    LANTERNS.spoilt(
        "lanterns filmed in the dark",
        fault(
            ALL,
            r"frame|nois|grain|dark|light|between|neighbou?r|flicker|inconsisten",
            r"frame|nois|grain|denois|light|clip|smooth",
        ),
        in_the_dark,
    ),
    LANTERNS.spoilt(
        "lanterns under other words in each frame",
        fault(
            ALL,
            r"frame|text|subtitle|overlay|occlu|between|neighbou?r|jump|order|inconsisten",
            r"frame|text|subtitle|overlay|crop|mask|clip",
        ),
        subtitled,
    ),
    LANTERNS.flagged(
        "lanterns three passes",
        fault(
            SETTINGS,
            r"still (falling|improv|decreas)|short|few (steps|epochs)|steps|epochs|under.?(fit|train)|schedule",
            r"--epochs|longer|more (steps|epochs)|epochs",
        ),
        "--epochs 3",
    ),
)

HEALTHY_PIPELINES: tuple[Healthy, ...] = (
    STALL.healthy("stall"),
    dataclasses.replace(STALL, good=16.0).healthy("stall relocated, not cloned", more="--growth mcmc"),
    dataclasses.replace(TOY, good=14.0).healthy("toy of real photos"),
    VASE_CLOSE.healthy("vase close by"),
    VASE.healthy(
        "vase poses learned from noisy ones",
        more="--pose-start noisy --rotation-noise 3 --translation-noise 0.02 --learn-rotation --learn-translation",
    ),
    SPOT.healthy("spot of twelve views"),
    LANTERNS.healthy("lanterns"),
    FILM.healthy("film of a real hare"),
)
