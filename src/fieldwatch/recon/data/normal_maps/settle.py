"""Settle the conventions of a set: what the user stated, else what the data shows, each said in a note."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

from fieldwatch.recon.data.normal_maps.axes import AXES, Choices, Convention, PixelCenter
from fieldwatch.recon.data.normal_maps.conventions import GOOD, best_convention, converted, noise_of
from fieldwatch.recon.data.normal_maps.map_files import NormalFile
from fieldwatch.recon.data.normal_maps.model import NormalView
from fieldwatch.recon.data.normal_maps.silhouettes import Coherence, silhouette_coherence

OPENGL = Convention(axes=AXES["opengl"], pixel_center="whole")
"""Usual convention of `cameras_sphere.npz`: OpenGL camera axes, pixel centers at whole numbers."""
_NEAR = 0.25  # pixels: distance of the best shift from a pixel center that it confirms
_CLEARER = 0.75  # share of the usual center's miss below which the other one must be
_LEAST_NOISE = 0.5  # degrees: below it, quantization and shape hide the noise
_MEANING = {"half": "at +0.5 (upper left corner of the picture is 0)", "whole": "at whole numbers (first pixel is 0)"}


@dataclass(frozen=True, kw_only=True)
class Settled:
    """Views in OpenCV camera axes, and how their files were read.

    Attributes:
        views: the views.
        convention: how the files encode normals and cameras.
        noise: noise of the normals from pixel to pixel in degrees about each of two axes; None if unknown.
    """

    views: list[NormalView]
    convention: Convention
    noise: float | None


def settled(  # noqa: PLR0913  views, what is known of them, and notes
    views: Sequence[NormalView],
    choices: Choices,
    usual: Convention,
    notes: list[str],
    *,
    silhouettes: bool = True,
    posed: bool = True,
) -> Settled:
    """Convert views to OpenCV camera axes and pixel centers at +0.5.

    Args:
        views: views with normals in the channels of their files, in a frame whose unit sphere holds the object; their
            cameras were made with the usual pixel center.
        choices: what the user states.
        usual: convention of the layout.
        notes: receives one line per convention.
        silhouettes: whether masks are silhouettes, which show axes and pixel centers.
        posed: whether the poses are known.
    """
    center, said_center = _pixel_center(views, choices, usual, told=silhouettes and posed)
    shift = {("whole", "half"): -0.5, ("half", "whole"): 0.5}.get((usual.pixel_center, center), 0.0)
    moved = [_shifted(view, shift) for view in views] if shift else list(views)
    usual = replace(usual, pixel_center=center)
    if not any(bool(view.known.any()) for view in moved):
        notes += [said_center, "no normals: the masks alone are trained (visual hull)"]
        return Settled(views=moved, convention=usual, noise=None)
    stated = choices if posed else replace(choices, space="camera")
    best, score, second = best_convention(moved, stated, usual)
    found = score is not None and score.value >= GOOD
    # What explains nothing is no finding: the usual convention is kept, and the checks name the problem.
    convention = best if found or score is None else _kept(stated, usual)
    fit = "" if score is None else f"fit {score.value:.2f} of 1"
    fit += "" if second is None or score is None else f", next best {second.value:.2f}"
    how = f"found from the data ({fit})" if found else "assumed: the data does not tell"
    for name, value, flag in (
        ("axes of the normals", convention.named, "--axes"),
        ("space of the normals", convention.space, "--space"),
        ("channels of the normals", convention.channels, "--channels"),
    ):
        given = getattr(choices, flag.removeprefix("--")) is not None
        notes.append(f"{name}: {value}, {'as given' if given else how}; {flag} overrules")
    notes.append(said_center)
    turned = [converted(view, convention) for view in moved]
    noise = noise_of(turned)
    if noise is not None:
        told = f"about {noise:.1f}" if noise >= _LEAST_NOISE else f"less than {_LEAST_NOISE:g}"
        notes.append(f"noise of the normals from pixel to pixel: {told} degrees about each axis; --noise overrules")
    return Settled(views=turned, convention=convention, noise=noise)


def _kept(choices: Choices, usual: Convention) -> Convention:
    axes = usual.axes if choices.axes is None else Convention(axes=choices.axes).canonical
    return replace(usual, axes=axes, space=choices.space or usual.space, channels=choices.channels or usual.channels)


def _pixel_center(
    views: Sequence[NormalView], choices: Choices, usual: Convention, *, told: bool
) -> tuple[PixelCenter, str]:
    """Return the pixel center of the intrinsics, and the line that says how it is known."""
    if choices.pixel_center is not None:
        return choices.pixel_center, f"pixel centers: {_MEANING[choices.pixel_center]}, as given"
    center = usual.pixel_center
    other: PixelCenter = "whole" if center == "half" else "half"
    coherence = silhouette_coherence(views) if told else None
    assumed = f"pixel centers: {_MEANING[center]}, assumed as the layout has them: "
    if coherence is None:
        return center, f"{assumed}without silhouettes and poses, the data does not tell; --pixel-center overrules"
    away = 0.5 if center == "half" else -0.5
    if abs(coherence.best - away) < _NEAR and coherence.at(away) < _CLEARER * coherence.at(0.0):
        return other, _said_center(other, coherence, away, 0.0)
    if abs(coherence.best) < _NEAR and coherence.at(0.0) < _CLEARER * coherence.at(away):
        return center, _said_center(center, coherence, 0.0, away)
    return center, (
        f"{assumed}the silhouettes fit best with principal points moved by {coherence.best:+.2f} pixels, which is "
        "neither; --pixel-center overrules"
    )


def _said_center(center: PixelCenter, coherence: Coherence, chosen: float, rejected: float) -> str:
    return (
        f"pixel centers: {_MEANING[center]}, found from the silhouettes (they miss each other by "
        f"{coherence.at(chosen):.2f} pixels, else by {coherence.at(rejected):.2f}); --pixel-center overrules"
    )


def _shifted(view: NormalView, shift: float) -> NormalView:
    camera = view.camera
    return replace(view, camera=replace(camera, cx=camera.cx + shift, cy=camera.cy + shift))


def encoding_note(files: Sequence[NormalFile], source: Literal["normals"] = "normals") -> str:
    """Return the line about formats and bits of the files."""
    kinds = Counter(file.encoding for file in files)
    listed = ", ".join(kind if number == len(files) else f"{kind} ({number})" for kind, number in kinds.items())
    coarse = any(file.bits == 8 for file in files)
    return f"files of {source}: {listed}" + (", which rounds them to 0.3 degrees" if coarse else "")
