"""Semantic targets: a teacher that encodes patches as unit vectors, and a cache of its embeddings on disk."""

import contextlib
import hashlib
import importlib.util
import io
import os
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor
from torch.nn import functional

from fieldwatch import InputError
from fieldwatch.files import read_npy, write_file
from fieldwatch.recon.data import Clip, PatchGrid
from fieldwatch.recon.pipelines.video.descriptor import ImageDescriptor

CLIP_NAME = "openai/clip-vit-base-patch32"
CLIP_FOLDER_VARIABLE = "FIELDWATCH_CLIP"
"""Environment variable with a folder of CLIP weights."""

_MEAN = (0.48145466, 0.4578275, 0.40821073)
_DEVIATION = (0.26862954, 0.26130258, 0.27577711)
_WEIGHTS = ("model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "pytorch_model.bin.index.json")
_TOKENIZERS = (("tokenizer.json",), ("vocab.json", "merges.txt"))
_BATCH = 64


@runtime_checkable
class Teacher(Protocol):
    """Encodes patches, and optionally text, as vectors of one space.

    Attributes:
        name: identifies the teacher and its settings; part of the cache key.
        dim: length of the vectors.
    """

    @property
    def name(self) -> str:
        """Name and settings of the teacher."""
        ...

    @property
    def dim(self) -> int:
        """Length of the vectors."""
        ...

    def encode_images(self, patches: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """Return a unit vector per patch, float32."""
        ...

    def encode_text(self, prompts: list[str]) -> Float[Tensor, "batch dim"]:
        """Return a unit vector per prompt, float32; raise ValueError if the teacher cannot encode text."""
        ...


class ClipTeacher:
    """CLIP through `transformers`, from local files; nothing is ever downloaded.

    As in CLIP's own preprocessing, patches are resized so that the shorter side matches the model's (224 for ViT-B/32;
    bicubic), center-cropped to a square and normalized; the ends of an elongated patch are cut off.

    Args:
        folder: folder with `config.json`, the weights and the tokenizer, as written by `save_pretrained`.
        device: device of the model.

    Raises:
        InputError: `transformers` is missing, or the folder does not contain a CLIP model.
    """

    def __init__(self, folder: Path | str, device: torch.device | str = "cpu") -> None:
        self._folder = Path(folder)
        if not _holds_clip(self._folder):
            msg = (
                f"{self._folder} holds no CLIP model: expected config.json and {_WEIGHTS[0]} (or {_WEIGHTS[2]}); use "
                "--teacher descriptor to train without CLIP"
            )
            raise InputError(msg)
        if importlib.util.find_spec("transformers") is None:
            msg = "CLIP needs the package transformers: pip install 'fieldwatch[clip]', or use --teacher descriptor"
            raise InputError(msg)
        model = _load_clip(self._folder)
        self._model = model.to(device, torch.float32).eval().requires_grad_(requires_grad=False)
        self._side = int(model.config.vision_config.image_size)
        self._device = torch.device(device)
        self.dim = int(model.config.projection_dim)
        # The digest distinguishes fine-tuned weights of equal size.
        self.name = f"clip-{self.dim}-{_weights_digest(self._folder)}"

    @torch.no_grad()
    def encode_images(self, patches: UInt8[Tensor, "batch 3 height width"]) -> Float[Tensor, "batch dim"]:
        """Encode patches as unit vectors on the host, float32."""
        # The empty first entry is for `cat` without patches.
        vectors = [torch.zeros(0, self.dim)]
        for chunk in patches.split(_BATCH) if len(patches) else ():
            pixels = _clip_pixels(chunk.to(self._device), self._side)
            pooled = self._model.vision_model(pixel_values=pixels).pooler_output
            vectors.append(functional.normalize(self._model.visual_projection(pooled), dim=-1).cpu())
        return torch.cat(vectors)

    @torch.no_grad()
    def encode_text(self, prompts: list[str]) -> Float[Tensor, "batch dim"]:
        """Encode prompts verbatim, without a template, as unit vectors on the host, float32.

        Raises:
            InputError: there are no prompts, or the folder has no tokenizer.
        """
        if not prompts:
            msg = "expected at least one prompt to encode, got none"
            raise InputError(msg)
        tokenizer = _load_tokenizer(self._folder)
        limit = int(self._model.config.text_config.max_position_embeddings)
        # CLIP's text encoder has a fixed number of positions; longer prompts are truncated.
        tokens = tokenizer(prompts, padding=True, truncation=True, max_length=limit, return_tensors="pt")
        pooled = self._model.text_model(**tokens.to(self._device)).pooler_output
        return functional.normalize(self._model.text_projection(pooled), dim=-1).cpu()


def _load_clip(folder: Path) -> Any:
    """Load the `CLIPModel` of a folder; fail on missing weights, which transformers would initialize randomly."""
    from safetensors import SafetensorError  # noqa: PLC0415 - comes with the optional transformers
    from transformers import CLIPModel  # noqa: PLC0415 - optional third-party library

    try:
        loaded: Any = CLIPModel.from_pretrained(folder, local_files_only=True, output_loading_info=True)
    except (OSError, EOFError, ValueError, RuntimeError, KeyError, UnpicklingError, SafetensorError) as error:
        reason = str(error).partition(". ")[0]  # torch then advises to disable its safe loading
        msg = f"{folder} cannot be loaded as a CLIP model ({reason}): copy its files again"
        raise InputError(msg) from error
    model, report = loaded
    if report["missing_keys"]:
        missing = sorted(report["missing_keys"])
        msg = f"{folder} lacks {len(missing)} weights of a CLIP model, first {missing[0]}: use a complete model"
        raise InputError(msg)
    return model


def _load_tokenizer(folder: Path) -> Any:
    """Load the `CLIPTokenizer` of a folder; fail on missing files, for which transformers would create an empty one."""
    from transformers import CLIPTokenizer  # noqa: PLC0415 - optional third-party library

    advice = "copy tokenizer.json, or vocab.json and merges.txt, to the folder of the weights"
    if not any(all((folder / name).is_file() for name in names) for names in _TOKENIZERS):
        msg = f"{folder} holds no CLIP tokenizer: {advice}"
        raise InputError(msg)
    try:
        return CLIPTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError, TypeError, KeyError) as error:
        msg = f"{folder} holds a damaged CLIP tokenizer ({error}): {advice}"
        raise InputError(msg) from error


def _clip_pixels(patches: UInt8[Tensor, "batch 3 height width"], side: int) -> Float[Tensor, "batch 3 side side"]:
    """Apply CLIP's preprocessing: bicubic resize of the shorter side, center crop, normalization."""
    height, width = patches.shape[-2:]
    shorter = min(height, width)
    size = (height * side // shorter, width * side // shorter)
    # Rounded and clipped, because CLIP's own preprocessing resizes 8-bit images.
    resized = functional.interpolate(patches.float(), size, mode="bicubic", antialias=True).round().clamp(0, 255) / 255
    top = (size[0] - side) // 2
    left = (size[1] - side) // 2
    square = resized[..., top : top + side, left : left + side]
    mean, deviation = (square.new_tensor(values).view(1, 3, 1, 1) for values in (_MEAN, _DEVIATION))
    return (square - mean) / deviation


def _holds_clip(folder: Path) -> bool:
    return (folder / "config.json").is_file() and any((folder / name).is_file() for name in _WEIGHTS)


def _weights_digest(folder: Path) -> str:
    """Return twelve digits of the weights' SHA-256, so that fine-tuned weights do not share a cache."""
    digest = hashlib.sha256((folder / "config.json").read_bytes())
    # Sorted, because the order of directory entries differs between machines.
    for path in sorted(p for p in folder.iterdir() if p.suffix in {".safetensors", ".bin"}):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:12]


class TeacherChoice(NamedTuple):
    """A teacher, and the reason for it."""

    teacher: Teacher
    note: str


def find_teacher(setting: str = "auto", device: torch.device | str = "cpu") -> TeacherChoice:
    """Find the teacher for a setting.

    Args:
        setting: "auto" takes CLIP if its weights are available and the descriptor if not; "descriptor"; "clip"; a
            folder of CLIP weights; or a model name in the Hugging Face cache. Nothing is downloaded.
        device: device of CLIP.

    Raises:
        InputError: CLIP or a specific model was requested but is not available.
    """
    if setting == "descriptor":
        return TeacherChoice(ImageDescriptor(), "image descriptor, as requested (not CLIP: it cannot encode text)")
    folder, missing = _clip_folder(setting)
    if folder is not None:
        return TeacherChoice(ClipTeacher(folder, device), f"CLIP from {folder}")
    if setting == "auto":
        return TeacherChoice(ImageDescriptor(), f"image descriptor instead of CLIP ({missing}): it cannot encode text")
    msg = (
        f"--teacher {setting}: found no CLIP weights ({missing}). Give their folder here or in "
        f"${CLIP_FOLDER_VARIABLE}, or use --teacher descriptor"
    )
    raise InputError(msg)


def _clip_folder(setting: str) -> tuple[Path | None, str]:
    """Return the folder of weights, or None and the reason."""
    # Only these two use the environment variable; a folder or model name is taken literally.
    standard = setting in {"auto", "clip"}
    named = os.environ.get(CLIP_FOLDER_VARIABLE, "") if standard else setting
    if named and Path(named).expanduser().is_dir():
        return Path(named).expanduser(), ""
    if named and standard:
        return None, f"${CLIP_FOLDER_VARIABLE} is {named}, which is not a folder"
    if importlib.util.find_spec("transformers") is None:
        return None, "the package transformers is not installed"
    return _cached_model(CLIP_NAME if standard else setting)


def _cached_model(name: str) -> tuple[Path | None, str]:
    """Return the folder of a model in the Hugging Face cache, or None and the reason."""
    from huggingface_hub import constants, try_to_load_from_cache  # noqa: PLC0415 - of the optional transformers

    try:
        config = try_to_load_from_cache(name, "config.json")
    except ValueError:  # not of the form owner/name
        return None, f"{name} is neither a folder nor a model name"
    if isinstance(config, str) and _holds_clip(Path(config).parent):
        return Path(config).parent, ""
    return None, f"{name} is not in {constants.HF_HUB_CACHE}"


def targets(
    clip: Clip, grid: PatchGrid, teacher: Teacher, cache_folder: Path | None = None
) -> Float[Tensor, "frames patches dim"]:
    """Encode every patch of a clip, exactly the pixels that are trained on, as float32 unit vectors.

    The original encoded the uncropped source file, so that its two heads were trained on different regions, and
    repeated this in every worker and epoch. Here it is done once: the result is cached in `cache_folder` under a hash
    of the pixels, their framing, the grid and the teacher. A truncated or modified file is computed again.

    Args:
        clip: frames of the clip.
        grid: patch grid.
        teacher: encoder of the patches.
        cache_folder: cache folder, created if missing; None disables the cache, as does a folder that cannot be
            written.

    Raises:
        ValueError: the grid does not match the clip's size.
        InputError: the teacher does not return unit vectors.
    """
    if (grid.height, grid.width) != (clip.height, clip.width):
        msg = f"expected a grid for {clip.height} x {clip.width} pixels, got {grid.height} x {grid.width}"
        raise ValueError(msg)
    # The cache is checked against this shape, too.
    shape = (len(clip), grid.patches, teacher.dim)
    path = cache_folder / f"{_key(clip, grid, teacher)}.npy" if cache_folder else None
    if path and (cached := _load(path, shape)) is not None:
        return cached
    vectors = torch.stack([teacher.encode_images(grid.split(frame[None])).float().cpu() for frame in clip])
    # Cosine losses and searches rely on unit vectors.
    lengths = vectors.norm(dim=-1)
    if vectors.shape != shape or not torch.allclose(lengths, torch.ones_like(lengths), atol=1e-3):
        msg = (
            f"expected unit vectors of shape {shape} from {teacher.name}, got {tuple(vectors.shape)} with lengths "
            f"{lengths.min():.3g} to {lengths.max():.3g}"
        )
        raise InputError(msg)
    if path:
        with contextlib.suppress(OSError):  # failing to write the cache must not end the run
            _save(path, vectors)
    return vectors


def _key(clip: Clip, grid: PatchGrid, teacher: Teacher) -> str:
    # "targets 1" is the version of this format: change it if the computation of the targets changes.
    parts = f"targets 1|{clip.digest}|{grid.rows}x{grid.columns}|{grid.height}x{grid.width}|{teacher.name}"
    return hashlib.sha256(parts.encode()).hexdigest()[:32]


def _save(path: Path, vectors: Float[Tensor, "frames patches dim"]) -> None:
    """Write a .npy file followed by its SHA-256 (which `numpy.load` ignores), atomically."""
    buffer = io.BytesIO()
    np.save(buffer, vectors.numpy(), allow_pickle=False)
    content = buffer.getvalue()
    write_file(path, content + hashlib.sha256(content).digest(), durable=True)


def _load(path: Path, shape: tuple[int, int, int]) -> Float[Tensor, "frames patches dim"] | None:
    """Read a cached file, or return None if there is no valid one."""
    try:
        content = path.read_bytes()
    except OSError:
        return None
    # A truncated or modified file counts as missing.
    if hashlib.sha256(content[:-32]).digest() != content[-32:]:
        return None
    array = read_npy(content)
    return torch.from_numpy(array) if array.shape == shape and array.dtype == np.float32 else None
