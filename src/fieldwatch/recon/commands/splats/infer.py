"""``fieldwatch infer splats RUN``: render a trained scene from its photos' cameras, from others, and along paths."""

import difflib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

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
from fieldwatch.files import output_names, output_path
from fieldwatch.recon.commands.splats.flags import InferSplatsFlags
from fieldwatch.recon.data import read_splat_cameras
from fieldwatch.recon.pipelines.splats import (
    Scene,
    SplatModel,
    open_drawn_run,
    render_path,
    render_view,
    save_picture,
    spiral_views,
    turntable_views,
    view_of,
)
from fieldwatch.recon.render import View

PATHS = {"turntable": turntable_views, "spiral": spiral_views}
MOST_PIXELS = 1 << 26
"""Largest number of pixels of one picture: 8192 x 8192."""
_EXTENSION = re.compile(r"\.(png|jpe?g|webp|tiff?|bmp)$", re.IGNORECASE)


class Film(NamedTuple):
    """A film to render: title, cameras, file, and the folder of its frames (None: frames are not kept)."""

    title: str
    views: Sequence[View]
    path: Path
    frames: Path | None


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(InferSplatsFlags, prog="fieldwatch infer splats", arguments=arguments)
    check_arguments(chosen)
    stored = open_stored(partial(open_drawn_run, device=chosen.device), chosen.run, chosen.checkpoint)
    folder = chosen.out or output_path(chosen.run, "products", f"infer-{stored.step}")
    console = Terminal(stderr=chosen.json)
    with reading_input():
        views = chosen_views(chosen, stored.scene)
        path_frames = path_views(chosen, stored.scene)
        check_writable(folder)
    films = films_of(chosen, views, path_frames, folder)
    files: dict[str, Path] = {}
    with counting_frames(console, "rendering", len(views) + sum(len(film.views) for film in films)) as on_frame:
        for name, view in views.items():
            files |= draw_view(chosen, stored.model, view, name, folder)
            on_frame()
        for film in films:
            files |= draw_film(chosen, stored.model, film, on_frame)
    paths = {name: path.absolute() for name, path in files.items()}
    if chosen.json:
        print_json({"run": chosen.run, "step": stored.step, "files": paths})
    else:
        print_paths(console, {"pictures": folder.absolute()} | paths if len(paths) > 1 else paths)
    return 0


def check_arguments(chosen: InferSplatsFlags) -> None:
    """Refuse values that are wrong for every run.

    Raises:
        BadInput: nothing is requested, a number is out of bounds, or two flags exclude each other.
    """
    if not (chosen.views or chosen.camera or chosen.path):
        raise BadInput("nothing to render: give --views test, --camera cameras.json, or --path turntable")
    if chosen.mp4 and not (chosen.views or chosen.camera):
        raise BadInput("--mp4 needs --views or --camera, whose pictures it joins; --path always writes a film")
    if chosen.png and chosen.path is None:
        raise BadInput("--png needs --path, whose frames it writes; --views and --camera always write pictures")
    if chosen.frames < 1:
        raise BadInput(f"--frames must be at least 1, as in 96 for four seconds, got {chosen.frames}")
    if not 0 < chosen.fps <= 1000:
        raise BadInput(f"--fps must be greater than 0 and at most 1000, got {chosen.fps:g}")
    if chosen.size is not None and chosen.scale != 1:
        raise BadInput(f"--size and --scale {chosen.scale:g} both set the size of the pictures: give one of them")
    if chosen.size is not None and min(chosen.size) < 1:
        raise BadInput(f"--size must be WIDTH HEIGHT, each at least 1 pixel, got {' '.join(map(str, chosen.size))}")
    if not 0 < chosen.scale < math.inf:
        raise BadInput(f"--scale must be greater than 0, as in 0.5 for half the width, got {chosen.scale:g}")


def chosen_views(chosen: InferSplatsFlags, scene: Scene) -> dict[str, View]:
    """Return the cameras of photos and of a file, by the name of their pictures, in the requested size.

    Raises:
        InputError: there is no such photo, or the views of a film have different sizes.
        SplatFolderError: the file cannot be read.
    """
    photos = scene.photos
    cameras = [(photos.names[index], scene.views[index]) for index in photo_indices(chosen.views, scene)]
    if chosen.camera is not None:
        cameras += [(camera.name, view_of(camera, scene.device)) for camera in read_splat_cameras(chosen.camera)]
    names = output_names((name for name, _ in cameras), drop_suffix=True)
    views = {name: in_size(chosen, view) for name, (_, view) in zip(names, cameras, strict=True)}
    sizes = {(view.width, view.height) for view in views.values()}
    if chosen.mp4 and len(sizes) > 1:
        raise InputError(f"--mp4 needs views of one size, got {len(sizes)} sizes: give --size WIDTH HEIGHT, too")
    return views


def photo_indices(wanted: Sequence[str], scene: Scene) -> list[int]:
    """Return photos by set, or by names with or without folder and extension.

    Raises:
        InputError: nothing is held out, or there is no such photo; the message suggests a name.
    """
    photos = scene.photos
    sets = {"test": photos.test, "train": photos.train}
    index_by_name = {file_stem(name): index for index, name in enumerate(photos.names)}
    # Full names win over stems, which may be ambiguous.
    index_by_name |= {name: index for index, name in enumerate(photos.names)}
    indices: list[int] = []
    for name_or_set in wanted:
        if name_or_set == "test" and not photos.test:
            raise InputError("--views test: this run has no held-out photo; use --views train, or the name of a photo")
        if name_or_set in sets:
            indices += sets[name_or_set]
        elif name_or_set in index_by_name:
            indices.append(index_by_name[name_or_set])
        else:
            near = difflib.get_close_matches(name_or_set, index_by_name, n=1, cutoff=0)
            raise InputError(
                f"--views {name_or_set}: the run has no photo of that name; give test, train, or names such as "
                f"{near[0]}"
            )
    return list(dict.fromkeys(indices))


def path_views(chosen: InferSplatsFlags, scene: Scene) -> list[View]:
    """Return the cameras of the path in the requested size; none without a path."""
    if chosen.path is None:
        return []
    return [in_size(chosen, view) for view in PATHS[chosen.path](scene, chosen.frames)]


def in_size(chosen: InferSplatsFlags, view: View) -> View:
    """Return a camera with the requested size; another aspect ratio shows more or less at the sides.

    Raises:
        InputError: the picture would be larger than `MOST_PIXELS`.
    """
    if chosen.size is None:
        view = view if chosen.scale == 1 else view.scaled(chosen.scale)
    else:
        width, height = chosen.size
        factor = height / view.height
        # The height fixes the scale; the principal point keeps its offset from the middle.
        cx, cy = width / 2 + (view.cx - view.width / 2) * factor, view.cy * factor
        lens = {"fx": view.fx * factor, "fy": view.fy * factor, "cx": cx, "cy": cy}
        view = replace(view, width=width, height=height, **lens)
    if view.width * view.height > MOST_PIXELS:
        raise InputError(
            f"a picture must have at most {MOST_PIXELS} pixels, got {view.width}x{view.height}: lower --size or --scale"
        )
    return view


def films_of(
    chosen: InferSplatsFlags, views: Mapping[str, View], path_frames: Sequence[View], folder: Path
) -> list[Film]:
    """Return the requested films."""
    films: list[Film] = []
    if chosen.mp4:
        films.append(Film("film of the views", list(views.values()), output_path(folder, "views.mp4"), None))
    if chosen.path is not None:
        frames = output_path(folder, chosen.path) if chosen.png else None
        films.append(Film(chosen.path, path_frames, output_path(folder, f"{chosen.path}.mp4"), frames))
    return films


def draw_film(chosen: InferSplatsFlags, model: SplatModel, film: Film, on_frame: Callable[[], None]) -> dict[str, Path]:
    """Render a film, with depth and normals side by side if they are requested."""
    # A film with depth or normals shows all three side by side.
    contents = "all" if chosen.depth or chosen.normals else "color"
    path = render_path(
        model, film.views, film.path, content=contents, rate=chosen.fps, frames=film.frames, on_frame=on_frame
    )
    return {film.title: path} | ({} if film.frames is None else {"its frames": film.frames})


def draw_view(chosen: InferSplatsFlags, model: SplatModel, view: View, name: str, folder: Path) -> dict[str, Path]:
    """Render one view as the requested pictures."""
    pictures = render_view(model, view)
    wanted = {name: pictures.color}
    wanted |= {f"{name}_depth": pictures.depth} if chosen.depth else {}
    wanted |= {f"{name}_normals": pictures.normal} if chosen.normals else {}
    return {title: save_picture(output_path(folder, f"{title}.png"), picture) for title, picture in wanted.items()}


def file_stem(name: str) -> str:
    """Return a camera's name as a file name: no folder, no picture suffix, no path syntax."""
    # A leading dot would hide the file.
    return re.sub(r"[^\w.-]+", "_", _EXTENSION.sub("", name)).lstrip(".") or "view"
