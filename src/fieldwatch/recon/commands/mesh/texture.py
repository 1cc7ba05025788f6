"""``fieldwatch mesh texture RUN MESH``: bake a texture for a mesh from a run's photos."""

import math
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, UInt8
from rich.console import Console
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.cli.kit import (
    BadInput,
    Terminal,
    check_writable,
    counting_frames,
    open_stored,
    print_json,
    print_paths,
    read_flags,
    reading_input,
)
from fieldwatch.files import output_path, write_file
from fieldwatch.recon.commands.mesh.flags import TextureFlags
from fieldwatch.recon.mesh import (
    AtlasLayout,
    BakedTexture,
    BakingOptions,
    TexturePhoto,
    Triangles,
    bake_texture,
    read_mesh,
    render_mesh,
    squares_across,
    unwrapped,
    write_glb,
    write_mesh,
)
from fieldwatch.recon.pipelines.splats import StoredRun, open_drawn_run, upwards
from fieldwatch.recon.render import cast_triangles

MANY_FACES = 30_000
"""Number of faces from which xatlas takes minutes; `--layout auto` then uses squares."""
# Two texels per pixel along each side (sampling theorem).
_TEXELS_PER_PIXEL = 4.0
# Fraction of a texture that faces cover, roughly; the rest are gaps between charts.
_FILLED_SHARE = 0.5
# Texels along a side of the smallest useful square, and limits of the texture's size.
_LEAST_SQUARE = 6
_SIZES = (256, 4096)
_OPAQUE = 0.5
# Upward directions closer to an axis than this cosine are snapped to it.
_AXIS_COSINE = 0.97


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(TextureFlags, prog="fieldwatch mesh texture", arguments=arguments)
    started = time.monotonic()
    with reading_input():
        mesh = outward(read_mesh(chosen.mesh, texture=False))
    layout, size = layout_of(chosen, len(mesh.faces))
    stored = open_photo_run(chosen)
    size = fitting_size(mesh, stored, layout) if size is None else size
    folder = chosen.out or output_path(chosen.run, "mesh", "textured")
    # Progress only; results go to standard output.
    console = Terminal(stderr=True)
    with reading_input():
        check_writable(folder)
        check_apart(chosen.mesh, folder)
        with console.status(f"laying out {len(mesh.faces):,} faces ({layout})"):
            mesh = unwrapped(mesh, method=layout, size=size)
        baked = bake(chosen, stored, mesh, size, console)
        files = write_files(baked.mesh, folder / chosen.mesh.stem, stored)
        score = held_out_score(stored, baked.mesh, console)
    results = {"step": stored.step, "faces": len(mesh.faces), "layout": layout, "size": size, "seen": baked.seen}
    results |= {"views_per_texel": baked.views, "photos": baked.photos, "blank_photos": baked.blank}
    results |= {"held_out_psnr": score and score.psnr, "held_out_photos": score.photos if score else 0}
    print_results(chosen, results | {"seconds": time.monotonic() - started}, files)
    return 0


def open_photo_run(chosen: TextureFlags) -> StoredRun:
    """Open the run whose photos are baked: a splats run or a refinement.

    Raises:
        BadInput: the run cannot be opened.
    """
    return open_stored(partial(open_drawn_run, device=chosen.device), chosen.run, chosen.checkpoint)


def outward(mesh: Triangles) -> Triangles:
    """Return the mesh with welded vertices; a closed mesh whose faces point inwards is flipped."""
    mesh = mesh.welded()
    return mesh.turned() if mesh.outward is False else mesh


def fitting_size(mesh: Triangles, stored: StoredRun, layout: AtlasLayout) -> int:
    """Return the size of a texture that preserves the resolution of the photos: a power of two, in texels."""
    middle = torch.from_numpy(np.median(mesh.vertices, axis=0))
    views = stored.scene.training_views
    pixel = statistics.median(float((view.position.cpu().double() - middle).norm()) / view.fx for view in views)
    # Surface area over the area of one texel, enlarged by the unused part of the atlas.
    side = math.sqrt(_TEXELS_PER_PIXEL * float(mesh.areas.sum()) / _FILLED_SHARE) / pixel
    if layout == "squares":
        side = max(side, _LEAST_SQUARE * squares_across(len(mesh.faces)))
    return min(max(1 << math.ceil(math.log2(side)), _SIZES[0]), _SIZES[1])


def layout_of(chosen: TextureFlags, faces: int) -> tuple[AtlasLayout, int | None]:
    """Return the layout, and the size of the texture in texels; None if it follows from the photos.

    Raises:
        BadInput: `--square-size` is not positive, or another layout is chosen.
    """
    layout: AtlasLayout = "squares" if faces >= MANY_FACES else "xatlas"
    if chosen.layout != "auto":
        layout = chosen.layout
    elif chosen.square_size is not None:
        layout = "squares"
    if chosen.square_size is None:
        return layout, chosen.size
    if layout != "squares":
        raise BadInput(
            f"--square-size {chosen.square_size} needs --layout squares: leave it out, or choose that layout"
        )
    if chosen.square_size < 1:
        raise BadInput(f"--square-size must be at least 1 texel, as in 8, got {chosen.square_size}")
    return layout, chosen.square_size * squares_across(faces)


def check_apart(mesh: Path, folder: Path) -> None:
    """Refuse to overwrite the input mesh.

    Raises:
        InputError: a written file would replace the mesh.
    """
    if mesh.suffix.lower() in {".obj", ".glb"} and mesh.absolute().parent == folder.absolute():
        raise InputError(f"{mesh} would be overwritten: choose another folder with --out")


def bake(chosen: TextureFlags, stored: StoredRun, mesh: Triangles, size: int, console: Console) -> BakedTexture:
    """Bake the training photos, or renders of the Gaussians from their cameras."""
    photos = rendered_photos(stored) if chosen.source == "renders" else training_photos(stored)
    with counting_frames(console, "baking", len(stored.scene.photos.train)) as done:
        return bake_texture(mesh, photos, size=size, options=BakingOptions(blend=chosen.blend), on_photo=done)


@torch.no_grad()
def training_photos(stored: StoredRun) -> Iterator[TexturePhoto]:
    """Yield the training photos where the Gaussians are opaque, without the exposures that the run learned.

    Next to the object, a photo shows the background, and no mesh ends exactly at the silhouette of its object.
    """
    exposures = stored.model.exposures
    for position, index in enumerate(stored.scene.photos.train):
        photo = stored.scene.photo_view(index)
        image = photo.image
        if exposures is not None:
            color_map = exposures.map_of(position).detach()
            # Undo the affine exposure map that the run learned for this photo.
            image = (image - color_map[:, 3]) @ torch.linalg.inv(color_map[:, :3]).T
        # degree=0: only opacity is needed, so no view-dependent color is evaluated.
        opaque = stored.model.render(photo.camera, degree=0).alpha > _OPAQUE
        mask = (opaque if photo.mask is None else opaque & (photo.mask[..., 0] > _OPAQUE)).cpu().numpy()
        yield TexturePhoto(image=levels(image), view=photo.camera, mask=mask)


@torch.no_grad()
def rendered_photos(stored: StoredRun) -> Iterator[TexturePhoto]:
    """Yield renders from the training cameras where the Gaussians are opaque, without view-dependent colors."""
    for view in stored.scene.training_views:
        output = stored.model.render(view, degree=0)
        opaque = (output.alpha > _OPAQUE).cpu().numpy()
        yield TexturePhoto(image=levels(output.features[..., :3]), view=view, mask=opaque)


def levels(image: Float[Tensor, "height width 3"]) -> UInt8[np.ndarray, "height width 3"]:
    """Return colors in [0, 1] as 8-bit values."""
    return (image.detach().clamp(0, 1) * 255).round().byte().cpu().numpy()


def write_files(mesh: Triangles, stem: Path, stored: StoredRun) -> dict[str, Path]:
    """Write the textured mesh, the GLB with the upward direction of the cameras; return the files by content."""
    obj = write_mesh(stem.with_name(f"{stem.name}.obj"), mesh)
    # File names in OBJ and MTL files end at a space: the writer replaces spaces in the names of these two.
    safe_stem = "_".join(stem.name.split())
    glb = stem.with_name(f"{stem.name}.glb")
    write_file(glb, write_glb(mesh, up=upright(stored)))
    companions = {kind: stem.with_name(f"{safe_stem}.{kind}") for kind in ("mtl", "png")}
    return {"obj": obj, **companions, "glb": glb}


def upright(stored: StoredRun) -> tuple[float, ...]:
    """Return the scene's upward direction, snapped to a nearby axis."""
    up = upwards(stored.scene.photos.cameras).numpy()
    axis = np.abs(up).argmax()
    return tuple((np.eye(3)[axis] * np.sign(up[axis]) if abs(up[axis]) > _AXIS_COSINE else up).tolist())


@dataclass(frozen=True, kw_only=True)
class TextureScore:
    """Quality of a textured mesh on held-out photos, inside its silhouette.

    Attributes:
        psnr: mean PSNR of the photos in dB; with the exposure of neighboring photos if the run learned exposures.
        photos: number of photos that show the mesh.
    """

    psnr: float
    photos: int


def held_out_score(stored: StoredRun, mesh: Triangles, console: Console) -> TextureScore | None:
    """Render the textured mesh for the held-out photos, and compare; None if none are held out or show it."""
    test = stored.scene.photos.test
    values: list[float] = []
    with counting_frames(console, "rendering held-out photos", len(test)) as on_photo:
        for index in test:
            psnr = photo_psnr(stored, mesh, index)
            values += [] if psnr is None else [psnr]
            on_photo()
    return TextureScore(psnr=statistics.fmean(values), photos=len(values)) if values else None


def photo_psnr(stored: StoredRun, mesh: Triangles, index: int) -> float | None:
    """Return the PSNR in dB against one photo, over pixels whose center shows the mesh; None without such pixels."""
    photo = stored.scene.photo_view(index)
    view = replace(photo.camera, camera_from_world=photo.camera.camera_from_world.cpu())
    # Exact visibility at pixel centers; anti-aliased borders would mix in the background.
    hits = cast_triangles(torch.from_numpy(mesh.vertices), torch.from_numpy(mesh.faces), view)
    counted = hits.faces >= 0
    if photo.mask is not None:
        counted &= photo.mask[..., 0].cpu() > 0.5
    if not bool(counted.any()):
        return None
    rendered = torch.from_numpy(render_mesh(mesh, stored.scene.photos.cameras[index], samples=1)).float() / 255
    if stored.model.exposures is not None:
        color_map = stored.model.exposures.between(photo.name).detach().cpu()
        rendered = (rendered @ color_map[:, :3].T + color_map[:, 3]).clamp(0, 1)
    # A perfect match has infinite PSNR: the bound limits it to 100 dB.
    error = float(((rendered - photo.image.cpu())[counted] ** 2).mean())
    return -10 * math.log10(max(error, 1e-10))


def print_results(chosen: TextureFlags, results: dict[str, Any], files: dict[str, Path]) -> None:
    """Print the files and the quality."""
    console = Terminal()
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        print_json({"run": chosen.run, "mesh": chosen.mesh, "from": chosen.source, **results, "files": paths})
        return
    summary = f"{results['faces']:,} faces, {results['layout']}, {results['size']} x {results['size']} texels"
    coverage = f"{results['seen']:.1%} of the texels seen, by {results['views_per_texel']:.1f} photos on average"
    lines = [f"{chosen.mesh}: {summary}, {results['seconds']:.0f} s", coverage]
    if results["blank_photos"]:
        lines.append(f"{results['blank_photos']} of {results['photos']} photos show no front face of the mesh")
    if results["held_out_psnr"] is None:
        lines.append("no held-out photo shows the mesh: its quality was not measured")
    else:
        lines.append(
            f"held-out PSNR inside the silhouette {results['held_out_psnr']:.2f} dB, {results['held_out_photos']} "
            "photos"
        )
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)
    print_paths(console, paths)
