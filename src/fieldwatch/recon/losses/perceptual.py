"""LPIPS: how different two images look to a network that has learned to see (Zhang 2018), from weights on the disk."""

import importlib.util
import os
import pickle
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from fieldwatch import InputError

FOLDER_VARIABLE = "FIELDWATCH_LPIPS"
"""Environment variable that may name a folder with both files of weights."""
FEATURES_FILE = "vgg16-397923af.pth"
"""State of VGG16, as torchvision saves it."""
WEIGHTS_FILE = "vgg.pth"
"""Weights of the five layers, as the `lpips` package ships them (version 0.1)."""

_STAGES = (((0, 64), (2, 64)), ((5, 128), (7, 128)), ((10, 256), (12, 256), (14, 256)))
_STAGES += (((17, 512), (19, 512), (21, 512)), ((24, 512), (26, 512), (28, 512)))
_WIDTHS = tuple(stage[-1][1] for stage in _STAGES)
_LEAST = 16  # pixels: the last layer sees a sixteenth of each side
# ImageNet's statistics, of images in [-1, 1]
_SHIFT = (-0.030, -0.088, -0.188)
_SCALE = (0.458, 0.448, 0.450)
_EPSILON = 1e-10

_UNREADABLE = (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError, AttributeError, TypeError)
"""What `torch.load` raises for files that are not what it wrote."""


class Lpips(nn.Module):
    """The LPIPS distance on VGG16: 0 for equal images, larger the more different they look.

    Args:
        features: weights of VGG16's convolutions, `features.N.weight` and `.bias`, among other keys.
        weights: of the five layers, `linN.model.1.weight` of shape (1, channels, 1, 1).

    Raises:
        InputError: a tensor is missing, or has another shape.
    """

    def __init__(self, features: Mapping[str, Any], weights: Mapping[str, Any]) -> None:
        super().__init__()
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
        """Return the distance of each image in [0, 1] from its photo.

        Raises:
            InputError: a side has fewer than 16 pixels.
        """
        if min(image.shape[-2:]) < _LEAST:
            raise InputError(
                f"LPIPS of images of {image.shape[-1]}x{image.shape[-2]} pixels was asked for: VGG16 halves them four "
                f"times, so each side needs {_LEAST} pixels or more; use larger images, or leave LPIPS out"
            )
        total = image.new_zeros(len(image))
        for layer, (one, other) in enumerate(zip(self._layers(image), self._layers(photo), strict=True)):
            difference = (_unit(one) - _unit(other)).square()
            weighed = functional.conv2d(difference, self.get_buffer(_buffer(f"lin{layer}.model.1.weight")))
            total = total + weighed.mean((1, 2, 3))
        return total

    def _layers(
        self, images: Float[Tensor, "batch 3 height width"]
    ) -> Iterator[Float[Tensor, "batch channels rows columns"]]:
        """Yield what VGG16 sees after the last rectifier of each of its five stages."""
        seen = (2 * images - 1 - self.get_buffer("shift")) / self.get_buffer("scale")
        for number, stage in enumerate(_STAGES):
            seen = functional.max_pool2d(seen, 2) if number else seen
            for place, _ in stage:
                kernel, bias = (self.get_buffer(_buffer(f"features.{place}.{part}")) for part in ("weight", "bias"))
                seen = functional.conv2d(seen, kernel, bias, padding=1).relu()
            yield seen


class LpipsFiles(NamedTuple):
    """The two files of weights."""

    features: Path
    weights: Path

    def load(self) -> Lpips:
        """Read them.

        Raises:
            InputError: a file is damaged or holds something else; the message names it.
        """
        parts = [_state(path) for path in self]
        try:
            return Lpips(*parts).eval()
        except ValueError as error:
            raise InputError(
                f"{self.features} and {self.weights} are not LPIPS's weights ({error}): copy them again"
            ) from error


def find_lpips() -> tuple[Lpips | None, str]:
    """Look for LPIPS's weights on the disk; nothing is ever downloaded.

    $FIELDWATCH_LPIPS may name a folder with `vgg16-397923af.pth` and `vgg.pth`. Else the first is looked for where
    torchvision puts it, the second in an installed `lpips` package, which is not imported.

    Returns:
        The distance, and where its weights come from; or None, and what is missing.

    Raises:
        ValueError: a file is damaged; the message names it.
    """
    named = os.environ.get(FOLDER_VARIABLE, "")
    places = [Path(named).expanduser()] if named else _hub_folders()
    features = _first(places, FEATURES_FILE)
    if features is None:
        return None, f"no {FEATURES_FILE} in {' or '.join(map(str, places))} (${FOLDER_VARIABLE} may name a folder)"
    weights = _first([Path(named).expanduser()] if named else _package_folders(), WEIGHTS_FILE)
    if weights is None:
        where = named or "an installed lpips package"
        return None, f"no {WEIGHTS_FILE} in {where} (${FOLDER_VARIABLE} may name a folder)"
    return LpipsFiles(features, weights).load(), f"{features}, {weights}"


def _hub_folders() -> list[Path]:
    """Where torchvision keeps what it once downloaded."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache")
    homes = [Path(os.environ["TORCH_HOME"])] if os.environ.get("TORCH_HOME") else []
    return [home.expanduser() / "hub" / "checkpoints" for home in (*homes, cache / "torch")]


def _package_folders() -> list[Path]:
    """Where an installed `lpips` package keeps its weights."""
    package = importlib.util.find_spec("lpips")
    roots = package.submodule_search_locations if package is not None else None
    return [Path(root) / "weights" / "v0.1" for root in roots or ()]


def _first(folders: list[Path], name: str) -> Path | None:
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def _state(path: Path) -> Mapping[str, Any]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except _UNREADABLE as error:
        raise InputError(f"{path} cannot be read as saved weights ({error}): copy or download it again") from error
    if not isinstance(found, Mapping):
        kind = type(found).__name__
        raise InputError(f"{path} holds a {kind}, wanted are weights by name: copy it again")
    return found


def _feature_shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    channels = 3
    for place, width in (layer for stage in _STAGES for layer in stage):
        yield f"features.{place}.weight", (width, channels, 3, 3)
        yield f"features.{place}.bias", (width,)
        channels = width


def _checked(state: Mapping[str, Any], name: str, shape: tuple[int, ...]) -> Tensor:
    found = state.get(name)
    if not isinstance(found, Tensor) or tuple(found.shape) != shape or not bool(found.isfinite().all()):
        came = f"of shape {tuple(found.shape)}" if isinstance(found, Tensor) else "missing"
        raise InputError(f"{name} is {came}, wanted is a finite tensor of shape {shape}")
    return found.detach().float().clone()


def _buffer(name: str) -> str:
    """Buffers may not have dots in their names."""
    return name.replace(".", "_")


def _unit(features: Float[Tensor, "batch channels rows columns"]) -> Float[Tensor, "batch channels rows columns"]:
    return features / (features.square().sum(1, keepdim=True).sqrt() + _EPSILON)
