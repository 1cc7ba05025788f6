"""Reduce a COLMAP scene: keep every n-th photo at half the size, and the points that these photos observe.

Usage: small_colmap.py SCENE OUT [EVERY]

It produced data/real/colmap_plush from 97 photos (see data/real/README.md). Cameras and observations are scaled
exactly; points keep their position and color, and are kept if at least two of the photos observe them.
"""

import struct
import sys
from dataclasses import dataclass
from pathlib import Path

from PIL import Image

HALF = 0.5


@dataclass(frozen=True)
class Photo:
    """A record of images.bin: unchanged head, name, and observations (x, y, point)."""

    number: int
    head: bytes
    name: str
    observations: list[tuple[float, float, int]]


def read_photos(path: Path) -> list[Photo]:
    """Read images.bin (https://colmap.github.io/format.html)."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<Q", data)
    at = 8
    photos = []
    for _ in range(count):
        head = data[at : at + 64]  # id, quaternion, translation, camera
        end = data.index(b"\0", at + 64)
        (many,) = struct.unpack_from("<Q", data, end + 1)
        seen = list(struct.iter_unpack("<ddq", data[end + 9 : end + 9 + 24 * many]))
        photos.append(Photo(struct.unpack_from("<I", head)[0], head, data[at + 64 : end].decode(), seen))
        at = end + 9 + 24 * many
    return photos


def read_points(path: Path) -> dict[int, tuple[bytes, list[tuple[int, int]]]]:
    """Read points3D.bin: the unchanged part (position, color, error) and the track of each point, by number."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<Q", data)
    at = 8
    points = {}
    for _ in range(count):
        (number,) = struct.unpack_from("<Q", data, at)
        (length,) = struct.unpack_from("<Q", data, at + 43)
        track = list(struct.iter_unpack("<II", data[at + 51 : at + 51 + 8 * length]))
        points[number] = (data[at + 8 : at + 43], track)
        at += 51 + 8 * length
    return points


def halved_cameras(path: Path) -> bytes:
    """Return cameras.bin for photos of half the size; PINHOLE cameras only."""
    data = path.read_bytes()
    (count,) = struct.unpack_from("<Q", data)
    size = 4 + 4 + 8 + 8 + 4 * 8
    cameras = []
    for i in range(count):
        number, model, width, height, *lens = struct.unpack_from("<IiQQ4d", data, 8 + size * i)
        if model != 1 or width % 2 or height % 2:
            raise SystemExit(f"expected PINHOLE cameras of even sizes, got model {model} of {width}x{height}")
        cameras.append(
            struct.pack("<IiQQ4d", number, model, width // 2, height // 2, *(HALF * value for value in lens))
        )
    return struct.pack("<Q", count) + b"".join(cameras)


def main(scene: Path, out: Path, every: int) -> None:
    """Write the reduced scene."""
    model = scene / "sparse" / "0"
    photos = sorted(read_photos(model / "images.bin"), key=lambda photo: photo.name)[::every]
    chosen = {photo.number for photo in photos}
    points = read_points(model / "points3D.bin")
    kept = {number for number, (_, track) in points.items() if len({image for image, _ in track} & chosen) >= 2}

    (out / "images").mkdir(parents=True)
    (out / "sparse" / "0").mkdir(parents=True)
    places: dict[tuple[int, int], int] = {}
    images = [struct.pack("<Q", len(photos))]
    for photo in photos:
        with Image.open(scene / "images" / photo.name) as whole:
            half = whole.convert("RGB").resize((whole.width // 2, whole.height // 2), Image.Resampling.BOX)
        half.save(out / "images" / photo.name, quality=90)
        seen = [(i, x, y, point) for i, (x, y, point) in enumerate(photo.observations) if point in kept]
        places |= {(photo.number, old): new for new, (old, *_) in enumerate(seen)}
        images.append(photo.head + photo.name.encode() + b"\0" + struct.pack("<Q", len(seen)))
        images += [struct.pack("<ddq", HALF * x, HALF * y, point) for _, x, y, point in seen]
    records = []
    for number in sorted(kept):
        facts, track = points[number]
        left = [(image, places[image, place]) for image, place in track if (image, place) in places]
        head = struct.pack("<Q", number) + facts + struct.pack("<Q", len(left))
        records.append(head + b"".join(struct.pack("<II", *seen) for seen in left))

    (out / "sparse" / "0" / "cameras.bin").write_bytes(halved_cameras(model / "cameras.bin"))
    (out / "sparse" / "0" / "images.bin").write_bytes(b"".join(images))
    (out / "sparse" / "0" / "points3D.bin").write_bytes(struct.pack("<Q", len(records)) + b"".join(records))
    print(f"{out}: {len(photos)} photos, {len(records)} points")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]) if len(sys.argv) > 3 else 4)
