"""Photos: decoding, area resizing, undistortion, masks, cache budget and decoding ahead."""

import itertools
import threading

import numpy as np
import pytest
import torch
from PIL import Image

from fieldwatch.recon.data import PhotoOptions, PhotoSet
from fieldwatch.recon.data.photos import (
    PhotoError,
    PhotoFolder,
    PhotoPixels,
    PosedPhoto,
    assemble,
    every_nth,
    no_points,
)
from fieldwatch.recon.data.photos.resampling import by_area
from fieldwatch.recon.geometry import Camera, Lens

EYE = torch.eye(4, dtype=torch.float64)


def pinhole(width=40, height=30):
    return Lens.of("PINHOLE", width, height, [50.0, 50.0, width / 2, height / 2])


def one(path, lens=None, mask=None, **options):
    """Return a set of one photo."""
    view = PosedPhoto(name=path.name, path=path, lens=lens or pinhole(), world_from_camera=EYE, mask=mask)
    points, colors = no_points()
    options = PhotoOptions(held_out=0, **options)
    return assemble([view], options, points=points, colors=colors, source="a test")


def saved(path, image, **options):
    image.save(path, **options)
    return path


def noise(width=40, height=30, channels=3, seed=0):
    values = np.random.default_rng(seed).integers(0, 256, (height, width, channels), dtype=np.uint8)
    return Image.fromarray(values if channels > 1 else values[..., 0])


def area_weights(size, wanted):
    """Return the overlap of each old pixel with each new one, from the definition."""
    edges = [i * size / wanted for i in range(wanted + 1)]
    shares = [[max(0, min(b, k + 1) - max(a, k)) for k in range(size)] for a, b in itertools.pairwise(edges)]
    return np.array(shares) * wanted / size


@pytest.mark.parametrize("size", [(40, 30), (20, 15), (13, 7), (39, 1), (1, 1)])
@pytest.mark.parametrize("channels", [1, 3])
def test_smaller_photos_are_means_by_area(size, channels):
    image = noise(channels=channels)
    expected = np.einsum(
        "ih,hw...,jw->ij...", area_weights(30, size[1]), np.asarray(image, float), area_weights(40, size[0])
    )
    assert np.abs(np.asarray(by_area(image, *size)) - expected).max() <= 0.5001


def test_the_longer_side_is_a_limit_and_not_a_wish(tmp_path):
    path = saved(tmp_path / "a.png", noise())
    small = one(path, longer_side=20)
    same = one(path, longer_side=400)
    assert small[0].image.shape == (15, 20, 3)
    assert (small.cameras[0].fx, small.cameras[0].cx) == (25, 10)
    assert same[0].image.shape == (30, 40, 3)


def test_photos_of_every_mode_become_eight_bit_color(tmp_path):
    gray = noise(channels=1)
    sixteen = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    for number, image in enumerate((gray, sixteen, gray.convert("P"), gray.convert("LA"), gray.convert("RGBA"))):
        photo = one(saved(tmp_path / f"{number}.png", image))[0]
        assert torch.equal(photo.image, torch.from_numpy(np.array(gray.convert("RGB")))), image.mode
        assert photo.alpha is None


def test_a_transparent_photo_shows_the_background_and_keeps_its_alpha(tmp_path):
    rgba = np.full((30, 40, 4), 200, np.uint8)
    rgba[:, :20, 3] = 0
    rgba[:, 20:, 3] = 255
    path = saved(tmp_path / "a.png", Image.fromarray(rgba))
    photo = one(path, background=(255, 0, 10))[0]
    assert photo.image[0, 0].tolist() == [255, 0, 10]
    assert photo.image[0, 39].tolist() == [200, 200, 200]
    assert photo.alpha[0, [0, 39]].tolist() == [0, 255]
    assert photo.mask is None


def test_a_mask_counts_only_pixels_that_are_wholly_in_it(tmp_path):
    drawn = np.zeros((30, 40), np.uint8)
    drawn[:, 13:] = 255
    mask = saved(tmp_path / "m.png", Image.fromarray(drawn))
    photo = one(saved(tmp_path / "a.png", noise()), mask=mask, longer_side=20)[0]
    assert photo.mask[0].tolist() == [0] * 7 + [255] * 13


def test_a_mask_may_be_cut_out_instead_of_painted(tmp_path):
    drawn = np.full((30, 40, 4), 255, np.uint8)
    drawn[:, :10, 3] = 0
    mask = saved(tmp_path / "m.png", Image.fromarray(drawn))
    photo = one(saved(tmp_path / "a.png", noise()), mask=mask)[0]
    assert photo.mask[0].tolist() == [0] * 10 + [255] * 30


def test_a_photo_is_turned_only_where_its_camera_says_so(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6
    path = saved(tmp_path / "a.jpg", noise(), exif=exif)
    assert one(path)[0].image.shape == (30, 40, 3)
    upright = one(path, lens=pinhole(30, 40))[0]
    assert upright.image.shape == (40, 30, 3)
    assert (upright.camera.width, upright.camera.height) == (30, 40)


def picture_through(lens, frequency=9.0):
    """Render a smooth plane at depth 1 through a lens by inverting the distortion per pixel."""
    rows, columns = np.mgrid[0 : lens.height, 0 : lens.width] + 0.5
    wanted = torch.from_numpy(np.stack([(columns - lens.cx) / lens.fx, (rows - lens.cy) / lens.fy], -1))
    points = wanted.clone()
    for _ in range(60):
        points = points + 0.7 * (wanted - lens.distort(points))
    return world(points, frequency), points


def world(points, frequency=9.0):
    x, y = points.double().unbind(-1)
    waves = [(frequency * x).sin(), (frequency * y + 1).cos(), (frequency * (x + y)).sin()]
    return (127.5 + 100 * torch.stack(waves, -1)).round().byte()


LENSES = {
    "OPENCV": [110.0, 100.0, 62.0, 45.0, -0.12, 0.03, 0.004, -0.003],
    "SIMPLE_RADIAL": [110.0, 64.0, 48.0, 0.15],
    "OPENCV_FISHEYE": [100.0, 100.0, 66.0, 47.0, 0.02, -0.01, 0.0, 0.0],
    "THIN_PRISM_FISHEYE": [100.0, 100.0, 66.0, 47.0, 0.02, -0.01, 0.001, -0.002, 0.0, 0.0, 0.003, -0.002],
    "FOV": [100.0, 100.0, 64.0, 48.0, 0.7],
    "DIVISION": [100.0, 100.0, 64.0, 48.0, -0.1],
}


@pytest.mark.parametrize("side", [128, 50])
@pytest.mark.parametrize("model", LENSES)
def test_a_photo_through_a_lens_is_shown_as_a_pinhole_sees_it(tmp_path, model, side):
    lens = Lens.of(model, 128, 96, LENSES[model])
    seen, _ = picture_through(lens)
    photos = one(saved(tmp_path / "a.png", Image.fromarray(seen.numpy())), lens=lens, longer_side=side)
    photo = photos[0]
    expected = world(photo.camera.directions()[..., :2]).float()
    inside = torch.ones(expected.shape[:2], dtype=torch.bool) if photo.mask is None else photo.mask == 255
    inside[[0, -1]] = inside[:, [0, -1]] = False  # pixels at the border have no neighbors to interpolate with
    error = (photo.image.float() - expected)[inside].abs()
    assert float(inside.double().mean()) > 0.75
    assert float(error.mean()) < 2
    assert float(error.max()) < 12
    assert any(note.startswith("1 photos") and model in note for note in photos.notes)


def test_what_the_lens_did_not_see_is_masked(tmp_path):
    lens = Lens.of("SIMPLE_RADIAL", 128, 96, [100.0, 64.0, 48.0, 0.3])  # pincushion: corners outside
    photos = one(saved(tmp_path / "a.png", noise(128, 96)), lens=lens)
    mask = photos[0].mask
    assert mask[48, 64] == 255
    assert mask[0, 0] == mask[-1, -1] == 0
    assert any("fill their frame" in note for note in photos.notes)
    drawn = Image.fromarray(np.zeros((96, 128), np.uint8))
    covered = one(tmp_path / "a.png", lens=lens, mask=saved(tmp_path / "m.png", drawn))
    assert int(covered[0].mask.max()) == 0


def test_photos_of_one_lens_share_what_straightens_them(tmp_path):
    lens = Lens.of("SIMPLE_RADIAL", 40, 30, [50.0, 20.0, 15.0, 0.1])
    paths = [saved(tmp_path / f"{i}.png", noise(seed=i)) for i in range(3)]
    views = [PosedPhoto(name=p.name, path=p, lens=lens, world_from_camera=EYE) for p in paths]
    points, colors = no_points()
    photos = assemble(views, PhotoOptions(held_out=0), points=points, colors=colors, source="a test")
    assert len({id(file.undistortion) for file in photos.read.files}) == 1


@pytest.mark.parametrize("content", [b"", b"not an image", b"\x89PNG\r\n\x1a\n" + b"x" * 50])
def test_an_unreadable_photo_is_named(tmp_path, content):
    (tmp_path / "bad.png").write_bytes(content)
    with pytest.raises(PhotoError, match=r"photo .*bad.png cannot be read"):
        one(tmp_path / "bad.png")


def test_a_photo_that_is_cut_short_is_named_when_it_is_read(tmp_path):
    path = saved(tmp_path / "cut.png", noise())
    path.write_bytes(path.read_bytes()[:-900])
    photos = one(path)
    with pytest.raises(PhotoError, match=r"photo .*cut\.png is cut short"):
        _ = photos[0]


def test_a_pointer_instead_of_a_photo_says_so(tmp_path):
    (tmp_path / "a.png").write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 12345\n")
    with pytest.raises(PhotoError, match=r"Git LFS pointer.*12345 bytes.*git lfs pull"):
        one(tmp_path / "a.png")


def test_a_photo_of_another_shape_is_refused(tmp_path):
    with pytest.raises(PhotoError, match=r"a.png is 40x40.*at 40x30"):
        one(saved(tmp_path / "a.png", noise(40, 40)))


def test_a_photo_of_floats_is_refused(tmp_path):
    with pytest.raises(PhotoError, match="32-bit floats"):
        _ = one(saved(tmp_path / "a.tif", Image.new("F", (40, 30))))[0]


def test_two_photos_of_one_name_are_refused(tmp_path):
    path = saved(tmp_path / "a.png", noise())
    view = PosedPhoto(name="a.png", path=path, lens=pinhole(), world_from_camera=EYE)
    points, colors = no_points()
    with pytest.raises(PhotoError, match=r"lists photo a.png more than once"):
        assemble([view, view], PhotoOptions(), points=points, colors=colors, source="a test")


@pytest.mark.parametrize("options", [{"longer_side": 0}, {"background": (0, 0, 256)}])
def test_options_that_cannot_be_meant_are_refused(options):
    with pytest.raises(PhotoError, match=r"side .* at least 1"):
        PhotoOptions(**options)


def test_every_eighth_is_held_out_from_the_first_on():
    train, test = every_nth(20, 8)
    assert test == (0, 8, 16)
    assert sorted(train + test) == list(range(20))
    assert every_nth(5, 0) == ((0, 1, 2, 3, 4), ())


@pytest.mark.parametrize(("count", "held_out"), [(5, 1), (5, -2), (1, 8), (0, 0)])
def test_a_split_that_leaves_nothing_is_refused(count, held_out):
    with pytest.raises(PhotoError, match=r"photos (for training|to train on)"):
        every_nth(count, held_out)


def test_names_are_found_however_they_are_spelled(tmp_path):
    for name in ("a/one.png", "b/one.png", "c/Two.JPG", "three.png", ".hidden.png"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        noise().convert("RGB").save(tmp_path / name, format="png")
    folder = PhotoFolder(tmp_path)
    assert folder.find("a/one.png") == tmp_path / "a/one.png"
    assert folder.find("./c\\two.png") == tmp_path / "c/Two.JPG"
    assert folder.find("two.jpg") == tmp_path / "c/Two.JPG"
    assert folder.find("elsewhere/three.jpeg") == tmp_path / "three.png"
    assert folder.find("one.png") is None  # two images have this name
    assert folder.find(".hidden.png") is None


def made(read, count=6, budget=1 << 30):
    lens = {"width": 4, "height": 4, "fx": 1.0, "fy": 1.0, "cx": 2.0, "cy": 2.0}
    cameras = [Camera(name=f"{i}.png", **lens, world_from_camera=EYE) for i in range(count)]
    points, colors = no_points()
    return PhotoSet(
        cameras=tuple(cameras),
        read=read,
        points=points,
        colors=colors,
        train=tuple(range(1, count)),
        test=(0,),
        source="a test",
        memory_budget=budget,
    )


class Counted:
    """Source of images whose value is their index, which records decoding counts and threads."""

    def __init__(self, broken=()):
        self.reads = []
        self.threads = set()
        self.broken = broken

    def __call__(self, index: int) -> PhotoPixels:
        self.reads.append(index)
        self.threads.add(threading.current_thread().name)
        if index in self.broken:
            msg = f"photo {index}.png cannot be read: copy it again from where it was taken"
            raise PhotoError(msg)
        return PhotoPixels(image=torch.full((4, 4, 3), index, dtype=torch.uint8))


def test_photos_within_the_budget_are_decoded_once_and_the_first_ones_stay():
    read = Counted()
    photos = made(read, budget=2 * 48 + 47)
    for _ in range(3):
        assert [int(photo.image[0, 0, 0]) for photo in photos] == list(range(6))
    assert [read.reads.count(i) for i in range(6)] == [1, 1, 3, 3, 3, 3]
    assert photos.cached_bytes == 96


def test_a_stream_gives_the_order_asked_for_and_decodes_ahead_off_thread():
    read = Counted()
    order = [3, 1, 3, 5, 0]
    with made(read).stream(order, ahead=2) as stream:
        assert [photo.index for photo in stream] == order
    assert all(name.startswith("fieldwatch-photos") for name in read.threads)


def test_a_stream_of_an_endless_order_decodes_only_so_far_ahead():
    read = Counted()
    with made(read).stream(itertools.cycle(range(6)), ahead=3) as stream:
        assert next(stream).index == 0
    assert len(read.reads) <= 5
    assert not [t for t in threading.enumerate() if t.name.startswith("fieldwatch-photos")]
    with pytest.raises(StopIteration):
        next(stream)


def test_what_goes_wrong_while_decoding_is_raised_where_the_photo_is_wanted():
    with made(Counted(broken={2})).stream([0, 1, 2, 3]) as stream:
        assert [next(stream).index, next(stream).index] == [0, 1]
        with pytest.raises(PhotoError, match=r"photo 2.png cannot be read"):
            next(stream)
        assert next(stream).index == 3


def test_an_interrupt_in_the_loop_leaves_no_thread_behind():
    def interrupted():
        with made(Counted()).stream(itertools.cycle(range(6))) as stream:
            next(stream)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert not [t for t in threading.enumerate() if t.name.startswith("fieldwatch-photos")]


def test_an_index_that_is_not_there_is_refused():
    with pytest.raises(IndexError, match="expected 0 to 5"):
        made(Counted())[6]


def test_a_picture_of_another_size_than_its_camera_is_refused():
    photos = made(lambda _: PhotoPixels(image=torch.zeros(4, 5, 3, dtype=torch.uint8)))
    with pytest.raises(PhotoError, match=r"photo 0.png: expected 4x4 pixels, got 5x4"):
        _ = photos[0]


def test_the_digest_knows_cameras_and_split_but_not_where_things_lie():
    one_set = made(Counted())
    same = made(Counted())
    assert one_set.digest == same.digest
    assert one_set.digest != one_set.having(train=(2, 3)).digest
    assert one_set.digest != made(Counted(), count=5).digest
