"""LPIPS perceptual distance on VGG16 (Zhang et al. 2018), with weights from disk."""

import importlib.util
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import InputError

FOLDER_VARIABLE = "FIELDWATCH_LPIPS"
"""Environment variable with the folder of both weight files."""
FEATURES_FILE = "vgg16-397923af.pth"
"""State dict of VGG16 from torchvision."""
FEATURES_URL = f"https://download.pytorch.org/models/{FEATURES_FILE}"
WEIGHTS_FILE = "vgg.pth"
"""Weights of the five layers from the `lpips` package (version 0.1)."""
_PACKAGES = {"lpips": "weights/v0.1", "torchmetrics": "functional/image/lpips_models"}
"""Packages that contain `WEIGHTS_FILE`, all the same file, and its folder in them."""

# Index in `features` and number of output channels of the convolutions of each stage.
_STAGES = (((0, 64), (2, 64)), ((5, 128), (7, 128)), ((10, 256), (12, 256), (14, 256)))
_STAGES += (((17, 512), (19, 512), (21, 512)), ((24, 512), (26, 512), (28, 512)))
_WIDTHS = tuple(stage[-1][1] for stage in _STAGES)
_MIN_SIDE = 16  # pixels: the last layer has a sixteenth of the resolution
# Mean and standard deviation of ImageNet for images in [-1, 1], as in the lpips package.
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_EPSILON = 1e-10

_UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError)
"""Exceptions that `torch.load` raises for damaged or foreign files."""


class Lpips(nn.Module):
    """LPIPS distance on VGG16: 0 for equal images, larger for perceptually more different ones.

    Args:
        features: state dict of VGG16 with the entries `features.N.weight` and `features.N.bias`; others are ignored.
        weights: weights of the five layers, `linN.model.1.weight` of shape (1, channels, 1, 1).

    Raises:
        InputError: if a tensor is missing or has another shape.
    """

    def __init__(self, features: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        super().__init__()
        # Buffers instead of parameters: LPIPS is never trained, but moves with `to`.
        for name, shape in _feature_shapes():
            self.register_buffer(_buffer(name), _checked(features, name, shape))
        for layer, width in enumerate(_WIDTHS):
            name = f"lin{layer}.model.1.weight"
            self.register_buffer(_buffer(name), _checked(weights, name, (1, width, 1, 1)))
        self.register_buffer("shift", torch.tensor(_SHIFT)[:, None, None])
        self.register_buffer("scale", torch.tensor(_SCALE)[:, None, None])

    def forward(
        self, image: Float[Tensor, "batch 3 height width"], photo: Float[Tensor, "batch 3 height width"]
    ) -> Float[Tensor, " batch"]:
        """Return the distance between each image and its photo, both in [0, 1].

        Raises:
            InputError: if a side has fewer than 16 pixels.
        """
        if min(image.shape[-2:]) < _MIN_SIDE:
            raise InputError(
                f"LPIPS got images of {image.shape[-1]}x{image.shape[-2]} pixels: VGG16 halves them four times, so "
                f"each side must have at least {_MIN_SIDE} pixels; use larger images, or leave LPIPS out"
            )
        total = image.new_zeros(len(image))
        for layer, (image_features, photo_features) in enumerate(
            zip(self._layers(image), self._layers(photo), strict=True)
        ):
            # LPIPS: unit vectors per pixel, squared difference, learned channel weights, spatial mean.
            difference = (_unit(image_features) - _unit(photo_features)).square()
            weighted = functional.conv2d(difference, self.get_buffer(_buffer(f"lin{layer}.model.1.weight")))
            total = total + weighted.mean((1, 2, 3))
        return total

    def _layers(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Iterator[Float[Tensor, "batch channels rows columns"]]:
        """Yield the activations of VGG16 after the last ReLU of each of its five stages."""
        # LPIPS scales images to [-1, 1] before it normalizes them with ImageNet statistics.
        activations = (2 * images - 1 - self.get_buffer("shift")) / self.get_buffer("scale")
        for number, stage in enumerate(_STAGES):
            # All stages except the first begin with pooling.
            activations = functional.max_pool2d(activations, 2) if number else activations
            for index, _ in stage:
                kernel, bias = (self.get_buffer(_buffer(f"features.{index}.{part}")) for part in ("weight", "bias"))
                activations = functional.conv2d(activations, kernel, bias, padding=1).relu()
            yield activations


class LpipsFiles(NamedTuple):
    """Result of the search for the two weight files.

    Attributes:
        features: path of `FEATURES_FILE`; None if it was not found.
        weights: path of `WEIGHTS_FILE`; None if it was not found.
        folders: folders that were searched; a file that is put into the first one is found.
    """

    features: Path | None
    weights: Path | None
    folders: tuple[Path, ...]

    @property
    def missing(self) -> str:
        """Names of the missing files and the folders that were searched; empty if both were found."""
        found = {FEATURES_FILE: self.features, WEIGHTS_FILE: self.weights}
        names = " and ".join(name for name, path in found.items() if path is None)
        return names and f"no {names} in {' or '.join(map(str, self.folders))}"

    @property
    def remedy(self) -> str:
        """How to get the missing files; empty if both were found."""
        steps: list[str] = []
        if self.features is None:
            steps.append(f"download {FEATURES_URL} (528 MB) into {self.folders[0]}, or set ${FOLDER_VARIABLE}")
        if self.weights is None:
            steps.append(f"run pip install --no-deps lpips (7 kB of weights, {WEIGHTS_FILE})")
        return "; ".join(steps)

    def load(self) -> Lpips:
        """Load LPIPS from the files.

        Raises:
            InputError: if a file is missing or damaged, or contains other data. The message names it.
        """
        if self.features is None or self.weights is None:
            raise InputError(f"LPIPS needs two files: {self.missing}: {self.remedy}")
        states = [_state(path) for path in (self.features, self.weights)]
        try:
            return Lpips(*states).eval()
        except ValueError as error:
            raise InputError(
                f"{self.features} and {self.weights} are not LPIPS weights ({error}): copy them again"
            ) from error


def find_lpips_files() -> LpipsFiles:
    """Search the two weight files on disk; nothing is read or downloaded.

    Both are searched in $FIELDWATCH_LPIPS if it is set, otherwise in torchvision's cache. `vgg.pth` is also searched in
    the installed packages `lpips` and `torchmetrics`, which are not imported.
    """
    chosen_folder = os.environ.get(FOLDER_VARIABLE, "")
    folders = (Path(chosen_folder).expanduser(),) if chosen_folder else tuple(_hub_folders())
    features = _first(folders, FEATURES_FILE)
    weights = _first((*folders, *_package_folders()), WEIGHTS_FILE)
    return LpipsFiles(features, weights, folders)


def find_lpips() -> tuple[Lpips | None, str]:
    """Load LPIPS if its weights are on disk; nothing is downloaded.

    Returns:
        The distance and the paths of its weights, or None and the names of the missing files.

    Raises:
        ValueError: if a file is damaged. The message names it.
    """
    files = find_lpips_files()
    if files.missing:
        return None, files.missing
    return files.load(), f"{files.features}, {files.weights}"


def _hub_folders() -> list[Path]:
    """Return the folders in which torchvision caches downloaded weights."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    homes = [Path(os.environ["TORCH_HOME"])] if os.environ.get("TORCH_HOME") else []
    return [home.expanduser() / "hub" / "checkpoints" for home in (*homes, cache / "torch")]


def _package_folders() -> Iterator[Path]:
    """Yield the weight folders of installed packages."""
    for name, folder in _PACKAGES.items():
        # Importing one of the packages would import torchvision.
        package = importlib.util.find_spec(name)
        roots = package.submodule_search_locations if package is not None else None
        yield from (Path(root) / folder for root in roots or ())


def _first(folders: Iterable[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _state(path: Path) -> Mapping[str, Any]:
    try:
        # weights_only prevents code execution by a manipulated file.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as a state dict ({error}): copy or download it again") from error
    if not isinstance(state, Mapping):
        kind = type(state).__name__
        raise InputError(f"{path}: expected a state dict, got {kind}: copy it again")
    return state


def _feature_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    channels = 3
    for index, width in (layer for stage in _STAGES for layer in stage):
        yield f"features.{index}.weight", (width, channels, 3, 3)
        yield f"features.{index}.bias", (width,)
        channels = width


def _checked(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    tensor = state.get(name)
    if not isinstance(tensor, Tensor) or tuple(tensor.shape) != shape or not bool(tensor.isfinite().all()):
        description = f"a tensor of shape {tuple(tensor.shape)}" if isinstance(tensor, Tensor) else "none"
        raise InputError(f"{name}: expected a finite tensor of shape {shape}, got {description}")
    return tensor.detach().float().clone()


def _buffer(name: str) -> str:
    """Return a buffer name, which must not contain dots."""
    return name.replace(".", "_")


def _unit(features: Float[Tensor, "batch channels rows columns"]) -> Float[Tensor, "batch channels rows columns"]:
    # The epsilon is outside the root, as in the reference code.
    return features / (features.square().sum(1, keepdim=True).sqrt() + _EPSILON)
