"""Small files that announce much: refused by their headers, in little memory and time."""

import json
import struct
import subprocess
import sys
import zipfile
import zlib

import numpy as np
import pytest
from PIL import Image

from fieldwatch.recon.mesh import Triangles
from fieldwatch.recon.mesh.glb import write_glb

READ = """
import resource, sys, time
from pathlib import Path
from fieldwatch.base import InputError, read_npy, read_npz
from fieldwatch.recon.data.colmap.binary import read_cameras, read_images, read_points
from fieldwatch.recon.data.gaussians.ply import read_vertices
from fieldwatch.recon.data.normal_maps.cameras_file import CamerasFile
from fieldwatch.recon.data.normal_maps.map_files import read_depth_file, read_mask_file, read_normal_file
from fieldwatch.recon.data.photos.photo_file import PhotoFile
from fieldwatch.recon.mesh import read_mesh
readers = {
    "glb": read_mesh, "mesh.ply": read_mesh, "gaussians.ply": read_vertices, "cameras.npz": CamerasFile,
    "normal": read_normal_file, "mask": read_mask_file, "depth": read_depth_file,
    "photo": lambda path: PhotoFile(path=path, stored=(8, 8), width=8, height=8).read(),
    "cameras.bin": read_cameras, "images.bin": read_images, "points3D.bin": read_points,
}
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (256 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
resource.setrlimit(resource.RLIMIT_CPU, (60, 60))
for path in sorted(Path(sys.argv[1]).iterdir()):
    name = path.name.split("-", 1)[1]
    read = next(read for key, read in readers.items() if name.startswith(key) or name.endswith(key))
    began = time.monotonic()
    try:
        read(path)
        how = "read"
    except InputError:
        how = "refused"
    except BaseException as error:
        how = f"{type(error).__name__}: {error}"
    print(f"{path.name}|{how}|{time.monotonic() - began:.2f}", flush=True)
"""
HEADER = "{{'descr': '{}', 'fortran_order': False, 'shape': {}, }}"


def npy(text, data=b""):
    raw = text.encode()
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(raw)) + raw + data


def png(width, height, depth=16, kind=2):
    def chunk(name, data):
        return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))

    head = struct.pack(">IIBBBBB", width, height, depth, kind, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(9999))) + chunk(b"IEND", b"")
    )


def glb(change):
    ball = Triangles(vertices=np.eye(3), faces=np.array([[0, 1, 2]]))
    data = write_glb(ball)
    length = struct.unpack_from("<I", data, 12)[0]
    about = json.loads(data[20 : 20 + length])
    change(about)
    text = json.dumps(about).encode()
    text += b" " * (-len(text) % 4)
    rest = data[20 + length :]
    return data[:8] + struct.pack("<II", 20 + len(text) + len(rest), len(text)) + data[16:20] + text + rest


def doubled(about):
    nodes = [{"children": [number + 1, number + 1]} for number in range(40)]
    about.update(nodes=[*nodes, {"mesh": 0}], scenes=[{"nodes": [0]}], scene=0)


def counted(about):
    about.update(nodes=[{"mesh": 0}] * 20, scenes=[{"nodes": list(range(20))}], scene=0)
    about["accessors"][0]["count"] = 1 << 40


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """Every file under a number and a name by which its reader is chosen; good ones are named so."""
    folder = tmp_path_factory.mktemp("planted")
    files = {}
    files["glb doubled.glb"] = glb(doubled)
    files["glb counted.glb"] = glb(counted)
    files["good.glb"] = glb(lambda _about: None)
    shapes = ["(4294967296, 4294967296)", "(2305843009213693952,)", "(-1, 4)", "(1" + "0" * 5000 + ",)"]
    for number, shape in enumerate(shapes):
        files[f"normal lies {number}.npy"] = npy(HEADER.format("<f4", shape))
    files["normal nests.npy"] = npy("(" * 9000)
    files["normal object.npy"] = npy(HEADER.format("|O", "(4, 4, 3)"), bytes(64))
    files["normal token.npy"] = npy("{'descr': '<f4', 'fortran_order': False, 'shape': (3, 4")
    files["mask lies.npy"] = npy(HEADER.format("|u1", "(1099511627776, 2)"))
    files["normal bomb.png"] = png(60000, 60000)
    files["mask bomb.png"] = png(40000, 40000, 8, 0)
    files["photo bomb.png"] = png(60000, 60000, 8, 2)
    files["mesh.ply"] = (
        b"ply\nformat binary_little_endian 1.0\nelement vertex 999999999999\nproperty float x\nproperty float y\nproperty float z\nelement face 1\nproperty list uchar int vertex_indices\nend_header\n"  # noqa: E501
    )
    files["gaussians.ply"] = (
        b"ply\nformat binary_little_endian 1.0\nelement vertex " + b"9" * 5000 + b"\nproperty float x\nend_header\n"
    )
    for name in ("cameras.bin", "images.bin", "points3D.bin"):
        files[name] = struct.pack("<Q", (1 << 63) - 1) + bytes(100)
    for number, (name, data) in enumerate(files.items()):
        (folder / f"{number:02d}-{name}").write_bytes(data)
    with zipfile.ZipFile(folder / "90-large cameras.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("world_mat_0.npy", npy(HEADER.format("<f8", "(16384, 65536)")) + bytes(1 << 20))
    big = npy(HEADER.format("<f8", "(6144, 6144)")) + bytes(8 * 6144 * 6144)
    with zipfile.ZipFile(folder / "91-bomb cameras.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("world_mat_0.npy", big)
    with zipfile.ZipFile(folder / "92-good cameras.npz", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("other.npy", big)
        archive.writestr("world_mat_0.npy", npy(HEADER.format("<f8", "(4, 4)"), np.eye(4).tobytes()))
    Image.fromarray(np.zeros((8, 8), np.uint8)).save(folder / "93-mask good.png")
    return folder


def test_what_announces_much_is_refused_by_its_header(planted):
    done = subprocess.run(
        [sys.executable, "-c", READ, str(planted)], capture_output=True, text=True, check=False, timeout=120
    )
    said = dict(line.split("|", 1) for line in done.stdout.splitlines())
    assert said.keys() == {path.name for path in planted.iterdir()}, done.stderr[-2000:]
    expected = {name: "read" if "good" in name else "refused" for name in said}
    assert {name: told.split("|")[0] for name, told in said.items()} == expected
    assert max(float(told.split("|")[1]) for told in said.values()) < 10
