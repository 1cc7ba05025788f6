import json
import sys

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn import functional

from fieldwatch.recon.data import Clip, PatchGrid
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor
from fieldwatch.recon.pipelines.video.teacher import (
    CLIP_FOLDER_VARIABLE,
    CLIP_NAME,
    ClipTeacher,
    Teacher,
    find_teacher,
    targets,
)

GRID = PatchGrid(2, 4, 48, 96)
WORDS = ("a", "rabbit", "tree", "meadow")


def random_bytes(*shape, seed=0):
    return torch.randint(0, 256, shape, generator=torch.Generator().manual_seed(seed), dtype=torch.uint8)


def write_tokenizer(folder):
    """A byte-pair vocabulary of letters and end-of-word letters, with one merge."""
    letters = sorted(set("".join(WORDS)))
    entries = [*letters, *(f"{letter}</w>" for letter in letters), "ab", "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({entry: place for place, entry in enumerate(entries)}))
    (folder / "merges.txt").write_text("#version: 0.2\na b\n")
    return len(entries)


def write_clip(folder, dim=8, seed=0):
    """A tiny CLIP with random weights, in the files that save_pretrained writes."""
    transformers = pytest.importorskip("transformers")
    folder.mkdir(parents=True, exist_ok=True)
    size = write_tokenizer(folder)
    tower = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": size - 2, "eos_token_id": size - 1, "pad_token_id": size - 1}
    config = transformers.CLIPConfig(
        text_config={**tower, **ends, "vocab_size": size, "max_position_embeddings": 12},
        vision_config={**tower, "image_size": 32, "patch_size": 8},
        projection_dim=dim,
    )
    torch.manual_seed(seed)
    transformers.CLIPModel(config).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def clip_folder(tmp_path_factory):
    return write_clip(tmp_path_factory.mktemp("weights"))


@pytest.fixture(scope="module")
def clip_teacher(clip_folder):
    return ClipTeacher(clip_folder)


@pytest.fixture
def no_clip(monkeypatch, tmp_path):
    """Simulate a machine without CLIP weights."""
    pytest.importorskip("transformers")  # without it, no weights are looked for
    constants = pytest.importorskip("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.delenv(CLIP_FOLDER_VARIABLE, raising=False)
    return tmp_path / "hub"


@pytest.fixture
def clip():
    return Clip.of(random_bytes(3, 3, 48, 96), source="test")


class Counting:
    """The descriptor, which counts the frames it encodes."""

    name = "counting"
    dim = 512

    def __init__(self, factor=1.0):
        self.frames = 0
        self.factor = factor

    def encode_images(self, patches):
        self.frames += 1
        return ImageDescriptor().encode_images(patches) * self.factor

    def encode_text(self, prompts):
        raise ValueError(f"cannot read {prompts}")


# CLIP


def test_both_teachers_are_teachers(clip_teacher):
    assert isinstance(clip_teacher, Teacher)
    assert isinstance(ImageDescriptor(), Teacher)


def test_clip_gives_unit_vectors_of_its_own_length(clip_teacher):
    vectors = clip_teacher.encode_images(random_bytes(5, 3, 24, 24))
    assert clip_teacher.dim == 8
    assert vectors.shape == (5, 8)
    assert vectors.dtype == torch.float32
    assert not vectors.requires_grad
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(5))


def test_clip_agrees_with_the_model_and_its_published_preprocessing(clip_folder, clip_teacher):
    transformers = pytest.importorskip("transformers")
    patch = random_bytes(1, 3, 40, 62)
    square = Image.fromarray(patch[0].permute(1, 2, 0).numpy()).resize((49, 32), Image.Resampling.BICUBIC)
    square = square.crop((8, 0, 40, 32))
    pixels = torch.from_numpy(np.array(square)).permute(2, 0, 1).float()[None] / 255
    mean = torch.tensor([0.48145466, 0.4578275, 0.40821073]).view(3, 1, 1)
    deviation = torch.tensor([0.26862954, 0.26130258, 0.27577711]).view(3, 1, 1)
    model = transformers.CLIPModel.from_pretrained(clip_folder).eval()
    with torch.no_grad():
        whole = model(input_ids=torch.tensor([[0, 1]]), pixel_values=(pixels - mean) / deviation)
    cosine = functional.cosine_similarity(clip_teacher.encode_images(patch), whole.image_embeds)
    assert float(cosine) > 0.9999


def test_clip_gives_the_same_vector_in_any_batch(clip_teacher):
    patches = random_bytes(70, 3, 24, 24)  # two chunks
    together = clip_teacher.encode_images(patches)
    torch.testing.assert_close(together[66:67], clip_teacher.encode_images(patches[66:67]))
    assert clip_teacher.encode_images(patches[:0]).shape == (0, 8)


def test_clip_reads_text_whatever_else_is_asked(clip_teacher):
    both = clip_teacher.encode_text(["a rabbit", "a tree meadow"])
    assert both.shape == (2, 8)
    torch.testing.assert_close(both.norm(dim=1), torch.ones(2))
    torch.testing.assert_close(both[:1], clip_teacher.encode_text(["a rabbit"]))
    assert not torch.allclose(both[0], both[1], atol=1e-3)
    assert clip_teacher.encode_text([" ".join(WORDS * 9)]).shape == (1, 8)  # longer than the model reads
    with pytest.raises(ValueError, match=r"one prompt .*none"):
        clip_teacher.encode_text([])


def test_clip_is_named_after_its_weights(clip_folder, clip_teacher, tmp_path):
    other = ClipTeacher(write_clip(tmp_path / "other", seed=1))
    wide = ClipTeacher(write_clip(tmp_path / "wide", dim=12))
    assert ClipTeacher(clip_folder).name == clip_teacher.name
    assert len({clip_teacher.name, other.name, wide.name}) == 3
    assert "clip" in clip_teacher.name
    assert wide.dim == 12


def test_a_folder_without_a_tokenizer_says_so(clip_folder, tmp_path):
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((clip_folder / name).read_bytes())
    with pytest.raises(ValueError, match=r"no CLIP tokenizer.*tokenizer\.json, or vocab\.json and"):
        ClipTeacher(tmp_path).encode_text(["a tree"])
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match=r"damaged CLIP tokenizer \(.*tokenizer\.json"):
        ClipTeacher(tmp_path).encode_text(["a tree"])


def test_half_precision_weights_compute_in_single(clip_folder, clip_teacher, tmp_path):
    transformers = pytest.importorskip("transformers")
    transformers.CLIPModel.from_pretrained(clip_folder).half().save_pretrained(tmp_path)
    vectors = ClipTeacher(tmp_path).encode_images(random_bytes(2, 3, 24, 24))
    assert vectors.dtype == torch.float32
    torch.testing.assert_close(vectors, clip_teacher.encode_images(random_bytes(2, 3, 24, 24)), atol=5e-3, rtol=0)


def test_a_folder_without_weights_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"no CLIP model.*config\.json and model\.safetensors"):
        ClipTeacher(tmp_path)


def test_damaged_weights_are_refused(clip_folder, tmp_path):
    (tmp_path / "config.json").write_bytes((clip_folder / "config.json").read_bytes())
    (tmp_path / "model.safetensors").write_bytes((clip_folder / "model.safetensors").read_bytes()[:5000])
    with pytest.raises(ValueError, match=r"a CLIP model \("):
        ClipTeacher(tmp_path)


def test_damaged_pickled_weights_are_refused(clip_folder, tmp_path):
    (tmp_path / "config.json").write_bytes((clip_folder / "config.json").read_bytes())
    (tmp_path / "pytorch_model.bin").write_bytes(b"not a checkpoint")
    with pytest.raises(ValueError, match=r"a CLIP model \("):
        ClipTeacher(tmp_path)


def test_half_a_model_is_refused_and_not_made_up(clip_folder, tmp_path):
    files = pytest.importorskip("safetensors.torch")
    weights = files.load_file(clip_folder / "model.safetensors")
    del weights["visual_projection.weight"]
    files.save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((clip_folder / "config.json").read_bytes())
    with pytest.raises(ValueError, match=r"lacks 1 weights.*visual_projection\.weight"):
        ClipTeacher(tmp_path)


# finding one


def test_auto_without_weights_is_the_descriptor_and_says_why(no_clip):
    teacher, note = find_teacher("auto")
    assert isinstance(teacher, ImageDescriptor)
    assert f"{CLIP_NAME} is not in {no_clip}" in note
    assert "cannot encode text" in note


def test_auto_with_weights_in_the_cache_is_clip(no_clip):
    model = no_clip / "models--openai--clip-vit-base-patch32"
    folder = write_clip(model / "snapshots" / ("0" * 40))
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text("0" * 40)
    teacher, note = find_teacher()
    assert isinstance(teacher, ClipTeacher)
    assert str(folder) in note
    assert find_teacher(CLIP_NAME).teacher.name == find_teacher("clip").teacher.name == teacher.name


def test_a_cached_configuration_without_weights_is_no_model(no_clip):
    model = no_clip / "models--openai--clip-vit-base-patch32"
    (model / "refs").mkdir(parents=True)
    (model / "refs" / "main").write_text("0" * 40)
    (model / "snapshots" / ("0" * 40)).mkdir(parents=True)
    (model / "snapshots" / ("0" * 40) / "config.json").write_text("{}")
    assert isinstance(find_teacher("auto").teacher, ImageDescriptor)


def test_the_environment_may_name_the_folder(no_clip, monkeypatch, clip_folder):
    monkeypatch.setenv(CLIP_FOLDER_VARIABLE, str(clip_folder))
    assert isinstance(find_teacher("auto").teacher, ClipTeacher)
    assert isinstance(find_teacher("descriptor").teacher, ImageDescriptor)


def test_a_folder_is_taken_at_its_word(no_clip, clip_folder, tmp_path):
    teacher, note = find_teacher(str(clip_folder))
    assert teacher.dim == 8
    assert str(clip_folder) in note
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"/empty .*config\.json"):
        find_teacher(str(tmp_path / "empty"))


@pytest.mark.parametrize("setting", ["clip", "somebody/else", "no/such/folder/here"])
def test_what_is_asked_for_and_missing_is_an_error(no_clip, setting):
    with pytest.raises(ValueError, match=rf"--teacher {setting}.*or use --teacher descriptor"):
        find_teacher(setting)


def test_without_transformers_auto_goes_on_and_clip_names_the_extra(no_clip, monkeypatch, clip_folder):
    monkeypatch.setitem(sys.modules, "transformers", None)  # as Python marks a module that cannot be imported
    assert isinstance(find_teacher("auto").teacher, ImageDescriptor)
    with pytest.raises(ValueError, match=r"pip install 'fieldwatch\[clip\]'"):
        find_teacher(str(clip_folder))


# targets


def test_targets_are_the_embeddings_of_the_patches_of_each_frame(clip):
    wanted = targets(clip, GRID, ImageDescriptor())
    assert wanted.shape == (3, 8, 512)
    patch = clip[2][:, 24:48, 48:72]  # row 1, column 2
    torch.testing.assert_close(wanted[2, 6], ImageDescriptor().encode_images(patch[None])[0])


def test_targets_are_made_once(clip, tmp_path):
    teacher = Counting()
    first = targets(clip, GRID, teacher, tmp_path / "a" / "cache")
    again = targets(clip, GRID, teacher, tmp_path / "a" / "cache")
    assert teacher.frames == 3
    assert torch.equal(first, again)
    [kept] = (tmp_path / "a" / "cache").iterdir()
    assert np.array_equal(np.load(kept, allow_pickle=False), first.numpy())


def test_targets_without_a_folder_leave_no_file(clip, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    targets(clip, GRID, Counting())
    assert not list(tmp_path.iterdir())


def test_other_pixels_grid_or_teacher_are_other_targets(clip, tmp_path):
    changed = clip.frames.clone()
    changed[0, 0, 0, 0] ^= 1
    targets(clip, GRID, Counting(), tmp_path)
    targets(Clip.of(changed, source="test"), GRID, Counting(), tmp_path)
    targets(clip, PatchGrid(4, 2, 48, 96), Counting(), tmp_path)
    targets(clip, GRID, ImageDescriptor(), tmp_path)
    assert len(list(tmp_path.iterdir())) == 4


def cut_short(content):
    return content[:1000]


def one_bit_turned(content):
    return content[:500] + bytes([content[500] ^ 1]) + content[501:]


def another_shape(content):
    return np.zeros((1, 1, 512), np.float32).tobytes()


@pytest.mark.parametrize(
    "damage", [cut_short, one_bit_turned, another_shape, lambda _: b"", lambda _: b"not an array" * 9]
)
def test_a_damaged_file_is_made_again(clip, tmp_path, damage):
    teacher = Counting()
    first = targets(clip, GRID, teacher, tmp_path)
    [kept] = tmp_path.iterdir()
    whole = kept.read_bytes()
    kept.write_bytes(damage(whole))
    assert torch.equal(targets(clip, GRID, teacher, tmp_path), first)
    assert teacher.frames == 6
    assert kept.read_bytes() == whole
    assert list(tmp_path.iterdir()) == [kept]


def test_a_folder_that_cannot_be_written_costs_time_and_not_the_run(clip, tmp_path):
    (tmp_path / "file").write_text("in the way")
    teacher = Counting()
    for _ in range(2):
        assert targets(clip, GRID, teacher, tmp_path / "file" / "cache").shape == (3, 8, 512)
    assert teacher.frames == 6


def test_a_foreign_grid_and_a_foreign_teacher_are_refused(clip, tmp_path):
    with pytest.raises(ValueError, match=r"48 x 96 pixels, got 48 x 48"):
        targets(clip, PatchGrid(2, 4, 48, 48), Counting())
    for factor in (2.0, float("nan")):
        with pytest.raises(ValueError, match=r"unit vectors .*\(3, 8, 512\) from counting"):
            targets(clip, GRID, Counting(factor), tmp_path)
    assert not list(tmp_path.iterdir())
