import pytest
import torch

from fieldwatch.recon.data import PatchGrid, read_clip
from fieldwatch.recon.pipelines.video.baselines import embedding_baselines
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor


def smooth(count, side=48, seed=0):
    """Random pictures with large shapes."""
    coarse = torch.rand(count, 3, 6, 6, generator=torch.Generator().manual_seed(seed))
    fine = torch.nn.functional.interpolate(coarse, (side, side), mode="bicubic").clamp(0, 1)
    return (fine * 255).round().to(torch.uint8)


def described(patches):
    return ImageDescriptor().encode_images(patches)


def cosines(a, b):
    return (described(a) * described(b)).sum(1)


def test_vectors_are_512_unit_float32_and_the_same_every_time():
    vectors = described(smooth(5))
    assert (ImageDescriptor().name, ImageDescriptor().dim) == ("image-descriptor-512", 512)
    assert vectors.shape == (5, 512)
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))
    torch.manual_seed(99)
    assert torch.equal(vectors, described(smooth(5)))


def test_a_patch_is_described_alone_whatever_its_batch():
    patches = smooth(300, side=16)  # two chunks
    torch.testing.assert_close(described(patches)[280:281], described(patches[280:281]))
    assert described(patches[:0]).shape == (0, 512)


def test_values_do_not_move_between_versions():
    """The first numbers of a checkerboard: a change of the descriptor needs a new name, for caches know it by that."""
    rows, columns = torch.meshgrid(torch.arange(64), torch.arange(64), indexing="ij")
    board = (((rows // 8 + columns // 8) % 2) * 200 + 20).to(torch.uint8).expand(1, 3, 64, 64)
    torch.testing.assert_close(described(board)[0, :4], torch.tensor(PINNED), atol=2e-5, rtol=0)


PINNED = [-0.0740783, 0.0871371, 0.0822409, 0.0103979]


def test_small_changes_stay_near():
    patches = smooth(8)
    brighter = (patches.float() * 1.05).clamp(0, 255).round().to(torch.uint8)
    noise = torch.randint(-3, 4, patches.shape, generator=torch.Generator().manual_seed(1))
    noisy = (patches.int() + noise).clamp(0, 255).to(torch.uint8)
    assert cosines(patches, brighter).min() > 0.97
    assert cosines(patches, noisy).min() > 0.9
    assert cosines(patches, patches.roll(1, dims=-1)).min() > 0.9


def test_other_pictures_are_clearly_farther():
    patches = smooth(32)
    others = smooth(32, seed=1)
    assert cosines(patches, others).mean() < 0.5
    assert cosines(patches, patches.roll(1, dims=-1)).mean() - cosines(patches, others).max() > 0.1


def test_color_and_direction_both_count():
    ramp = torch.linspace(0, 255, 48).to(torch.uint8)
    across = ramp.expand(1, 3, 48, 48)
    down = ramp[:, None].expand(1, 3, 48, 48)
    red = torch.tensor([200, 40, 40], dtype=torch.uint8).view(1, 3, 1, 1).expand(1, 3, 48, 48)
    assert float(cosines(across, down)) < 0.8
    assert float(cosines(red, red.flip(1))) < 0.8  # blue


@pytest.mark.parametrize("level", [0, 128, 255])
def test_flat_patches_have_a_direction_too(level):
    flat = torch.full((1, 3, 20, 30), level, dtype=torch.uint8)
    assert torch.isfinite(described(flat)).all()
    torch.testing.assert_close(described(flat).norm(), torch.tensor(1.0))


def test_size_hardly_matters():
    small = smooth(4, side=48)
    large = small.repeat_interleave(4, dim=2).repeat_interleave(4, dim=3)
    assert cosines(small, large).min() > 0.9


def test_text_is_refused_with_the_way_out():
    with pytest.raises(ValueError, match=r"cannot encode text \(1 prompts, first \['a tree'\]\).*--teacher FOLDER"):
        ImageDescriptor().encode_text(["a tree"])


def test_a_real_clip_is_not_one_point(real_data):
    clip = read_clip(real_data / "video_bunny")
    grid = PatchGrid(2, 4, clip.height, clip.width)
    vectors = described(grid.split(clip.frames)).view(len(clip), 8, 512)
    baselines = embedding_baselines(vectors, range(28), range(28, 32))
    assert baselines["Eval/Baseline/val_clip_sim_mean"] < 0.7  # measured 0.61
    assert baselines["Eval/Baseline/val_clip_sim_shuffled"] < 0.5  # measured 0.37
    assert float((vectors[1:] * vectors[:-1]).sum(-1).mean()) > 0.9  # the same place one frame on: 0.96
