"""Splat formats: files of other programs are read, and what is written differs as little as the format allows."""

import gzip
import io
import json
import math
import struct
import tracemalloc
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch import InputError
from fieldwatch.recon.data.gaussians import (
    WRITABLE,
    GaussianCloud,
    PlyError,
    SplatFileError,
    read_gaussians,
    write_gaussians,
)
from fieldwatch.recon.data.gaussians.quantization import half_turn_about_x
from fieldwatch.recon.geometry.spherical_harmonics import harmonics
from fieldwatch.recon.render import View, rasterize

FILES = Path(__file__).parents[2] / "fixtures" / "splat_files"
OPAQUE = 12
"""Gaussians of the scene whose opacity is 1 in 8 bits."""

# Bounds of the format: rotation (degrees), log scale, opacity, SH coefficient of degree 0, of the others; functions.
BOUNDS = {
    "scene.compressed.ply": (0.2, 0.003, 0.002, 0.006, 0.016, 15),
    "scene_v2.spz": (8.0, 0.032, 0.002, 0.014, 0.07, 15),
    "scene_v3.spz": (0.2, 0.032, 0.002, 0.014, 0.07, 15),
    "scene_v4.spz": (0.2, 0.032, 0.002, 0.014, 0.07, 15),
    "scene.splat": (1.7, 1e-6, 0.004, 0.015, 0.0, 0),
    "scene_0.ksplat": (0.1, 1e-6, 0.004, 0.015, 0.0, 8),
    "scene_1.ksplat": (0.1, 0.001, 0.004, 0.015, 0.0005, 8),
    "scene_2.ksplat": (0.1, 0.001, 0.004, 0.015, 0.005, 8),
    "scene.sog": (1.3, 0.006, 0.004, 0.005, 0.004, 15),
}
# Lowest PSNR of renders of the file against renders of the scene with as many SH functions, dB.
PSNR = {
    "scene.compressed.ply": 35,
    "scene_v2.spz": 35,
    "scene_v3.spz": 35,
    "scene_v4.spz": 35,
    "scene.splat": 50,
    "scene_0.ksplat": 50,
    "scene_1.ksplat": 50,
    "scene_2.ksplat": 50,
    "scene.sog": 50,
}
PARTS = ("means", "log_scales", "quaternions", "opacity_logits", "constant", "rest")


@pytest.fixture(scope="module")
def scene():
    return read_gaussians(FILES / "scene.ply")


def changed_scene(scene, **changed):
    return GaussianCloud(**{name: getattr(scene, name) for name in PARTS} | changed)


def matched(cloud, scene):
    """Rows of the scene in the order of the cloud: other programs sort."""
    rows = torch.cdist(cloud.means.double(), scene.means.double()).argmin(1)
    assert len(rows.unique()) == len(scene)
    return rows


def angles(one, other):
    product = torch.nn.functional.normalize(one.double(), dim=1) * torch.nn.functional.normalize(other.double(), dim=1)
    return 2 * product.sum(1).abs().clamp_max(1).acos().rad2deg()


def views():
    """Four cameras around the torus, from above and below."""
    for turn in range(4):
        angle = turn * math.pi / 2 + 0.3
        position = torch.tensor([3 * math.cos(angle), -1.2 + 0.9 * turn, 3 * math.sin(angle)])
        forward = torch.nn.functional.normalize(-position, dim=0)
        right = torch.nn.functional.normalize(torch.linalg.cross(torch.tensor([0.0, 1.0, 0.0]), forward), dim=0)
        rotation = torch.stack([right, torch.linalg.cross(forward, right), forward])
        camera_from_world = torch.eye(4)
        camera_from_world[:3, :3] = rotation
        camera_from_world[:3, 3] = -rotation @ position
        yield View(camera_from_world=camera_from_world, width=96, height=72, fx=90.0, fy=90.0, cx=48.0, cy=36.0)


def render(cloud, functions):
    missing = 15 - functions
    rest = torch.nn.functional.pad(cloud.rest[:, :functions], (0, 0, 0, missing))
    images = [
        rasterize(
            cloud.means,
            cloud.quaternions,
            cloud.log_scales.exp(),
            cloud.opacity_logits.sigmoid(),
            view,
            spherical_harmonics=(cloud.constant[:, None], rest),
        ).features
        for view in views()
    ]
    return torch.stack(images).clamp(0, 1)


def psnr(cloud, scene):
    functions = cloud.rest.shape[1]
    return float(-10 * (render(cloud, functions) - render(scene, functions)).square().mean().log10())


@pytest.mark.parametrize("name", BOUNDS)
def test_files_of_other_programs_hold_the_scene(name, scene):
    degrees, log_scale, opacity, constant, rest, functions = BOUNDS[name]
    cloud = read_gaussians(FILES / name)
    rows = matched(cloud, scene)
    assert cloud.rest.shape == (len(scene), functions, 3)
    assert float(angles(cloud.quaternions, scene.quaternions[rows]).max()) <= degrees
    assert float((cloud.log_scales - scene.log_scales[rows]).abs().max()) <= log_scale
    assert float((cloud.opacity_logits.sigmoid() - scene.opacity_logits[rows].sigmoid()).abs().max()) <= opacity
    assert float((cloud.constant - scene.constant[rows]).abs().max()) <= constant
    assert not functions or float((cloud.rest - scene.rest[rows, :functions]).abs().max()) <= rest


@pytest.mark.parametrize("name", BOUNDS)
def test_files_of_other_programs_look_like_the_scene(name, scene):
    assert psnr(read_gaussians(FILES / name), scene) > PSNR[name]


def test_a_mirrored_or_turned_scene_looks_different(scene):
    """The bounds of the PSNR can tell: half a turn, red for blue, or a flipped quaternion are far below them."""
    names = ("means", "quaternions", "rest")
    turned = half_turn_about_x(*(getattr(scene, name).numpy() for name in names))
    turned = dict(zip(names, map(torch.from_numpy, turned), strict=True))
    assert psnr(changed_scene(scene, **turned), scene) < 25
    assert psnr(changed_scene(scene, quaternions=scene.quaternions[:, [1, 2, 3, 0]]), scene) < 27
    assert psnr(changed_scene(scene, constant=scene.constant[:, [2, 1, 0]]), scene) < 25
    # Channel-major coefficients that are read as if the channel were the inner axis.
    mixed = scene.rest.reshape(-1, 3, 15).mT.contiguous()
    assert psnr(changed_scene(scene, rest=mixed), scene) < 34


def test_half_a_turn_keeps_the_colors():
    directions = torch.nn.functional.normalize(torch.randn(20, 3), dim=1)
    rest = torch.randn(20, 15, 3).numpy()
    means, _, turned = half_turn_about_x(directions.numpy(), np.ones((20, 4), np.float32), rest)
    before = torch.einsum("nk,nkc->nc", harmonics(directions, 3)[:, 1:], torch.from_numpy(rest))
    after = torch.einsum("nk,nkc->nc", harmonics(torch.from_numpy(means), 3)[:, 1:], torch.from_numpy(turned))
    assert torch.allclose(before, after, atol=1e-5)


@pytest.mark.parametrize("name", ["scene.compressed.ply", "scene_v2.spz", "scene_v3.spz", "scene_v4.spz"])
def test_opacities_of_1_are_bounded_and_noted(name):
    cloud = read_gaussians(FILES / name)
    assert float(cloud.opacity_logits.sigmoid().max()) == pytest.approx(1 - 1 / 510, abs=1e-6)
    assert any(f"{OPAQUE} of 240" in note for note in cloud.notes)


@pytest.mark.parametrize("format_name", WRITABLE)
@pytest.mark.parametrize("degree", [0, 1, 3])
def test_what_is_written_is_read_again(tmp_path, scene, format_name, degree):
    functions = (degree + 1) ** 2 - 1
    parts = {
        name: getattr(scene, name) for name in ("means", "log_scales", "quaternions", "opacity_logits", "constant")
    }
    cloud = GaussianCloud(**parts, rest=scene.rest[:, :functions])
    written = write_gaussians(tmp_path / f"a{WRITABLE[format_name]}", cloud, format_name)
    again = read_gaussians(written.path)
    assert (written.gaussians, written.size) == (240, written.path.stat().st_size)
    assert again.rest.shape[1] == (0 if format_name == "splat" else functions)
    assert bool(written.notes) == (format_name == "splat" and degree > 0)
    losses = {loss.quantity: loss for loss in written.losses}
    assert all(0 <= loss.mean <= loss.worst for loss in losses.values())
    worst = {name: loss.worst for name, loss in losses.items()}
    bounds = {"positions": 0.04, "colors": 0.004, "opacity": 0.002, "scales": 0.033, "rotations": 1.3}
    assert {name: value for name, value in worst.items() if value > bounds.get(name, 1)} == {}
    if format_name == "ply":
        assert set(worst.values()) == {0.0}
    assert psnr(again, cloud) > 30


def test_the_losses_are_the_differences(tmp_path, scene):
    """Measured a second time, from the two clouds."""
    written = write_gaussians(tmp_path / "a.spz", scene, "spz")
    again = read_gaussians(written.path)
    losses = {loss.quantity: loss for loss in written.losses}
    distances = (again.means - scene.means).norm(dim=1)
    assert losses["positions"].worst == pytest.approx(float(distances.max()))
    assert losses["rotations"].mean == pytest.approx(
        float(angles(again.quaternions, scene.quaternions).mean()), rel=0.01
    )
    assert losses["scales"].worst == pytest.approx(
        float(((again.log_scales - scene.log_scales).exp() - 1).abs().max()), rel=1e-4
    )


def test_spz_has_the_finest_fixed_point_that_fits(tmp_path, scene):
    for factor, finest in ((1, 2**-18), (1000, 2**-8)):
        parts = {
            name: getattr(scene, name) for name in ("log_scales", "quaternions", "opacity_logits", "constant", "rest")
        }
        written = write_gaussians(tmp_path / "a.spz", GaussianCloud(means=scene.means * factor, **parts), "spz")
        assert written.losses[0].worst <= finest
    with pytest.raises(SplatFileError, match=r"8388607.*\.spz"):
        write_gaussians(tmp_path / "b.spz", changed_scene(scene, means=scene.means * 1e6), "spz")
    assert not (tmp_path / "b.spz").exists()


@pytest.mark.parametrize("format_name", ["spz", "sog"])
def test_two_formats_say_whether_the_training_was_antialiased(tmp_path, scene, format_name):
    for antialiased in (False, True):
        path = write_gaussians(tmp_path / "a", scene, format_name, antialiased=antialiased).path
        notes = " ".join(read_gaussians(path).notes)
        assert ("--antialiased" in notes) == antialiased


def test_many_chunks_are_bounded_separately(tmp_path):
    """1,000 Gaussians are four chunks; a chunk of one point has no extent."""
    generator = torch.Generator().manual_seed(0)
    means = torch.rand(1000, 3, generator=generator)
    means[:300] = 5.0
    cloud = GaussianCloud(
        means=means,
        log_scales=torch.rand(1000, 3, generator=generator),
        quaternions=torch.randn(1000, 4, generator=generator),
        opacity_logits=torch.randn(1000, generator=generator),
        constant=torch.rand(1000, 3, generator=generator),
        rest=torch.zeros(1000, 0, 3),
    )
    written = write_gaussians(tmp_path / "a.compressed.ply", cloud, "compressed-ply")
    assert written.losses[0].worst < 0.004
    assert int((read_gaussians(written.path).means == 5).all(1).sum()) == 300


def test_the_header_of_a_compressed_ply_is_that_of_supersplat(tmp_path, scene):
    """Readers exist that ignore the names of the columns and rely on their order."""
    headers = [
        [line for line in path.read_bytes().split(b"end_header")[0].splitlines() if not line.startswith(b"comment")]
        for path in (
            FILES / "scene.compressed.ply",
            write_gaussians(tmp_path / "a.compressed.ply", scene, "compressed-ply").path,
        )
    ]
    assert headers[0] == headers[1]


def test_2dgs_gets_a_thickness_along_its_normal(tmp_path):
    names = "x y z f_dc_0 f_dc_1 f_dc_2 opacity scale_0 scale_1 rot_0 rot_1 rot_2 rot_3".split()
    rows = np.random.default_rng(0).normal(size=(5, len(names))).astype("<f4")
    properties = "".join(f"property float {name}\n" for name in names)
    header = f"ply\nformat binary_little_endian 1.0\nelement vertex 5\n{properties}end_header\n"
    path = tmp_path / "surfels.ply"
    path.write_bytes(header.encode() + rows.tobytes())
    cloud = read_gaussians(path)
    assert np.array_equal(cloud.log_scales[:, :2].numpy(), rows[:, 7:9])
    assert torch.allclose(cloud.log_scales[:, 2].exp(), cloud.log_scales[:, :2].amin(1).exp() / 1000)
    assert any("two scales" in note for note in cloud.notes)


def test_sog_is_about_as_exact_as_the_file_of_another_writer(tmp_path, scene):
    ours = read_gaussians(write_gaussians(tmp_path / "a.sog", scene, "sog").path)
    other = read_gaussians(FILES / "scene.sog")  # by splat-transform
    for name in ("log_scales", "constant", "rest"):
        pairs = [(getattr(cloud, name), getattr(scene, name)[matched(cloud, scene)]) for cloud in (ours, other)]
        errors = [float((read - true).square().mean().sqrt()) for read, true in pairs]
        assert errors[0] < 2 * errors[1], (name, errors)


def test_equal_gaussians_are_equal_sog_files(tmp_path, scene):
    paths = [write_gaussians(tmp_path / name, scene, "sog").path for name in ("a.sog", "b.sog")]
    assert paths[0].read_bytes() == paths[1].read_bytes()


def test_sog_keeps_what_is_under_transparent_pixels(tmp_path, scene):
    """An opacity of 0 is an alpha of 0, under which WebP drops colors unless it is told not to."""
    logits = torch.where(torch.arange(240) % 3 == 0, torch.tensor(-20.0), scene.opacity_logits)
    transparent = changed_scene(scene, opacity_logits=logits)
    losses = {loss.quantity: loss for loss in write_gaussians(tmp_path / "a.sog", transparent, "sog").losses}
    assert losses["colors"].worst < 0.003


def write_sogs(folder, scene, count=225):
    """Write version 1 of SOG by its description: ranges instead of codebooks."""
    side = math.isqrt(count)
    folder.mkdir()
    files = {}

    def image(name, pixels):
        Image.fromarray(pixels).save(folder / f"{name}.webp", lossless=True, exact=True)
        return f"{name}.webp"

    def entry(values, bits):
        low, high = values.min(0), values.max(0)
        return {"mins": low.tolist(), "maxs": high.tolist()}, np.rint((values - low) / (high - low) * (2**bits - 1))

    means = scene.means[:count].double().numpy()
    files["means"], steps = entry(np.sign(means) * np.log1p(np.abs(means)), 16)
    words = steps.astype(np.uint16).reshape(side, side, 3)
    files["means"]["shape"] = [count, 3]
    files["means"]["files"] = [
        image("means_l", (words & 255).astype("u1")),
        image("means_u", (words >> 8).astype("u1")),
    ]
    files["scales"], steps = entry(scene.log_scales[:count].numpy(), 8)
    files["scales"]["files"] = [image("scales", steps.astype("u1").reshape(side, side, 3))]
    files["sh0"], steps = entry(torch.cat([scene.constant, scene.opacity_logits[:, None]], 1)[:count].numpy(), 8)
    files["sh0"]["files"] = [image("sh0", steps.astype("u1").reshape(side, side, 4))]
    quaternions = scene.quaternions[:count].numpy()
    largest = np.abs(quaternions).argmax(1)
    kept = np.stack([np.delete(q * np.sign(q[i]), i) for q, i in zip(quaternions, largest, strict=True)])
    pixels = np.concatenate([np.rint((kept / np.sqrt(2) + 0.5) * 255), largest[:, None] + 252], 1).astype("u1")
    files["quats"] = {"encoding": "quaternion_packed", "files": [image("quats", pixels.reshape(side, side, 4))]}
    palette, labels = np.unique(scene.rest[:count].numpy().reshape(count, -1), axis=0, return_inverse=True)
    low, high = float(palette.min()), float(palette.max())
    grid = np.zeros((-(-len(palette) // 64) * 64, 15, 3))
    grid[: len(palette)] = (palette.reshape(-1, 15, 3) - low) / (high - low)
    centroids = image("shN_centroids", np.rint(grid * 255).astype("u1").reshape(-1, 64 * 15, 3))
    labels = np.stack([labels & 255, labels >> 8, labels * 0], 1).astype("u1").reshape(side, side, 3)
    files["shN"] = {"mins": low, "maxs": high, "quantization": 8, "files": [centroids, image("shN_labels", labels)]}
    (folder / "meta.json").write_text(json.dumps(files))


def test_the_first_version_of_sog_is_read_from_its_folder(tmp_path, scene):
    write_sogs(tmp_path / "sogs", scene)
    for path in (tmp_path / "sogs", tmp_path / "sogs" / "meta.json"):
        cloud = read_gaussians(path)
        assert torch.allclose(cloud.means, scene.means[:225], atol=2e-3)
        assert float(angles(cloud.quaternions, scene.quaternions[:225]).max()) < 1.3
        assert float((cloud.opacity_logits - scene.opacity_logits[:225]).abs().max()) < 0.05
        assert float((cloud.log_scales - scene.log_scales[:225]).abs().max()) < 0.02
        assert float((cloud.rest - scene.rest[:225]).abs().max()) < 0.004


def sog_with(tmp_path, **changed):
    """The .sog of the scene with other entries of meta.json, or other members (bytes; None leaves one out)."""
    path = tmp_path / "changed.sog"
    with zipfile.ZipFile(FILES / "scene.sog") as source, zipfile.ZipFile(path, "w") as target:
        for name in source.namelist():
            data = source.read(name)
            if name == "meta.json":
                data = json.dumps(json.loads(data) | changed.get("meta", {})).encode()
            data = changed.get("members", {}).get(name, data)
            if data is not None:
                target.writestr(name, data)
    return path


def webp(pixels):
    stream = io.BytesIO()
    Image.fromarray(pixels).save(stream, "webp", lossless=True)
    return stream.getvalue()


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"meta": {"version": 3}}, "version 1 or 2, got 3"),
        ({"meta": {"count": 2**31}}, "2147483648"),
        ({"meta": {"count": "many"}}, "meta.json"),
        ({"meta": {"count": 10_000}}, "10000 pixels"),
        ({"meta": {"scales": {"files": ["scales.webp"]}}}, "codebook"),
        ({"meta": {"scales": {"codebook": [0.0], "files": ["scales.webp"]}}}, "256"),
        ({"meta": {"quats": {"files": ["../quats.webp"]}}}, r"\.\./quats.webp"),
        ({"members": {"quats.webp": None}}, "quats.webp"),
        ({"members": {"quats.webp": b"RIFF"}}, "quats.webp"),
        ({"members": {"quats.webp": webp(np.zeros((16, 16, 4), np.uint8))}}, "252 to 255"),
        ({"members": {"meta.json": b"[]"}}, "meta.json"),
    ],
)
def test_a_damaged_sog_names_what_is_wrong(tmp_path, changed, fact):
    with pytest.raises(SplatFileError, match=fact):
        read_gaussians(sog_with(tmp_path, **changed))


def test_the_images_of_a_folder_stay_in_it(tmp_path):
    with zipfile.ZipFile(FILES / "scene.sog") as archive:
        archive.extractall(tmp_path / "inside")
    (tmp_path / "inside" / "quats.webp").rename(tmp_path / "quats.webp")
    meta = tmp_path / "inside" / "meta.json"
    meta.write_text(meta.read_text().replace("quats.webp", "../quats.webp"))
    with pytest.raises(SplatFileError, match=r"\.\./quats.webp"):
        read_gaussians(tmp_path / "inside")


@pytest.mark.parametrize("name", BOUNDS)
@pytest.mark.parametrize("kept", [0.0, 0.02, 0.5, 0.97])
def test_a_cut_file_is_refused(tmp_path, name, kept):
    data = (FILES / name).read_bytes()
    # 13 is no multiple of the 32 bytes of a row in a .splat file.
    path = tmp_path / name
    path.write_bytes(data[: max(int(len(data) * kept) // 32 * 32 - 13, 0)])
    with pytest.raises((SplatFileError, PlyError), match=str(path)):
        read_gaussians(path)


def spz_with(**changed):
    values = {"magic": b"NGSP", "version": 3, "count": 240, "degree": 3, "bits": 12} | changed
    body = gzip.decompress((FILES / "scene_v3.spz").read_bytes())[16:]
    fields = (values["magic"], values["version"], values["count"], values["degree"], values["bits"], 0, 0)
    return gzip.compress(struct.pack("<4sIIBBBB", *fields) + body)


@pytest.mark.parametrize(
    ("changed", "fact"),
    [
        ({"magic": b"GZIP"}, "NGSP"),
        ({"version": 1}, "version 1"),
        ({"version": 9}, "version 9"),
        ({"count": 2**31}, "2147483648"),
        ({"count": 2**26}, "cut short"),
        ({"count": 0}, "declares 0"),
        ({"degree": 5}, "5"),
        ({"bits": 99}, "99"),
    ],
)
def test_a_damaged_spz_names_what_is_wrong(tmp_path, changed, fact):
    path = tmp_path / "a.spz"
    path.write_bytes(spz_with(**changed))
    with pytest.raises(SplatFileError, match=fact):
        read_gaussians(path)


def test_flipped_bits_are_refused_or_harmless(tmp_path):
    """A damaged file ends in an InputError, or in Gaussians that are finite; never in another exception."""
    generator = np.random.default_rng(1)
    for name in BOUNDS:
        data = np.frombuffer((FILES / name).read_bytes(), np.uint8)
        path = tmp_path / name
        for _ in range(8):
            damaged = data.copy()
            places = generator.integers(0, min(len(data), 6000), 3)
            damaged[places] ^= generator.integers(1, 256, 3).astype(np.uint8)
            path.write_bytes(damaged.tobytes())
            try:
                cloud = read_gaussians(path)
            except InputError:
                continue
            assert bool(torch.isfinite(cloud.means).all())


@pytest.mark.parametrize(
    ("name", "place", "form"),
    [
        ("scene_v4.spz", 8, "<I"),
        ("scene_0.ksplat", 4096, "<I"),
        ("scene_1.ksplat", 4100, "<I"),
        ("scene_0.ksplat", 4, "<I"),
    ],
)
def test_a_huge_count_uses_no_memory(tmp_path, name, place, form):
    data = bytearray((FILES / name).read_bytes())
    struct.pack_into(form, data, place, 2**31 - 1)
    path = tmp_path / name
    path.write_bytes(data)
    tracemalloc.start()
    with pytest.raises(SplatFileError):
        read_gaussians(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_a_ply_with_a_huge_count_uses_no_memory(tmp_path):
    path = tmp_path / "scene.compressed.ply"
    path.write_bytes((FILES / path.name).read_bytes().replace(b"vertex 240", b"vertex 2147483648"))
    with pytest.raises(PlyError, match="2147483648"):
        read_gaussians(path)


@pytest.mark.parametrize("column", ["min_scale_y", "max_r", "packed_color", "f_rest_7"])
def test_a_compressed_ply_without_a_column_is_refused(tmp_path, column):
    data = (FILES / "scene.compressed.ply").read_bytes()
    path = tmp_path / "a.ply"
    path.write_bytes(data.replace(f" {column}\n".encode(), b" other\n"))
    with pytest.raises(PlyError, match=rf"{column}|f_rest_\*"):
        read_gaussians(path)


def test_a_compressed_ply_with_too_few_chunks_is_refused(tmp_path, scene):
    path = write_gaussians(tmp_path / "a.compressed.ply", scene, "compressed-ply").path
    # The table of one row of 18 numbers becomes one of no rows and 18 numbers that nothing declares.
    data = path.read_bytes().replace(b"element chunk 1", b"element chunk 0")
    header, body = data.split(b"end_header\n", 1)
    path.write_bytes(header + b"end_header\n" + body[18 * 4 :])
    with pytest.raises(PlyError, match="1 chunks of 256"):
        read_gaussians(path)


@pytest.mark.parametrize(
    ("name", "data", "fact"),
    [
        ("a.glb", b"glTF" + bytes(20), "glTF"),
        ("a.spz", b"\x89PNG\r\n\x1a\n", "PNG"),
        ("a.splat", b"PK\x03\x04" + bytes(40), "zip"),
        ("a.ply", b"<!DOCTYPE html>", "HTML"),
        ("a.pt", b"\x80\x02}q", "pickle"),
        ("a.spz", b"", "begins with b''"),
        ("scene.bin", bytes(64), ".splat"),
        ("a.spz", b"version https://git-lfs.github.com/spec/v1\nsize 12345\n", "Git LFS pointer.*12345"),
    ],
)
def test_another_file_is_named_by_its_signature(tmp_path, name, data, fact):
    path = tmp_path / name
    path.write_bytes(data)
    with pytest.raises(SplatFileError, match=fact):
        read_gaussians(path)


def test_a_checkpoint_of_torch_is_named(tmp_path):
    torch.save({"a": torch.zeros(2)}, tmp_path / "a.pt")
    with pytest.raises(SplatFileError, match="PyTorch"):
        read_gaussians(tmp_path / "a.pt")


def test_what_is_missing_is_no_gaussians(tmp_path):
    for path in (tmp_path / "none.spz", tmp_path):
        with pytest.raises(SplatFileError, match=str(path)):
            read_gaussians(path)


def test_the_format_follows_the_bytes_and_not_the_name(tmp_path, scene):
    path = tmp_path / "a.bin"
    path.write_bytes((FILES / "scene_v3.spz").read_bytes())
    assert len(read_gaussians(path)) == len(scene)
