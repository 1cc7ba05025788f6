"""Flags of the commands about splats, from pictures to meshes; importing them needs no torch."""

from collections.abc import Sequence
from dataclasses import dataclass, field, make_dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from fieldwatch.cli.kit import FlagGroups, NewRunFlags, RunFlags, merged_groups, preset_of
from fieldwatch.recon.commands.migrate.mesh import translate_refine
from fieldwatch.recon.pipelines.splats import REFINE_PRESETS, ExtractOptions, RefineOptions


@dataclass(frozen=True, kw_only=True)
class InferSplatsFlags(RunFlags):
    """Render a trained scene: the views of its photos, the cameras of a file, or a film along a path.

    Example: fieldwatch infer splats runs/garden --views test --depth --normals

    Example: fieldwatch infer splats runs/garden --path turntable --frames 120 --size 640 480

    Pictures are PNG files named after their cameras; a path is a film (mp4). The run itself is not changed.
    """

    views: tuple[str, ...] = ()
    """Photos whose cameras to render: test, train, or names."""
    camera: Path | None = None
    """File of cameras to render: cameras.json, as 3DGS writes it."""
    path: Literal["turntable", "spiral"] | None = None
    """Render a film around the scene: turntable (level) or spiral (climbing)."""
    frames: int = 96
    """Number of frames of the path."""
    fps: float = 24.0
    """Frames per second of films."""
    mp4: bool = False
    """Also join the pictures of --views or --camera into a film, in the order of their names."""
    png: bool = False
    """Also write every frame of a path as a picture."""
    depth: bool = False
    """Also write depth: near red, far violet."""
    normals: bool = False
    """Also write normals: red to the right, green up, blue towards the camera."""
    size: tuple[int, int] | None = None
    """WIDTH HEIGHT of the pictures, pixels; the vertical field of view is that of the photos."""
    scale: float = 1.0
    """Pixels per pixel of the photos."""
    out: Path | None = None
    """Folder for the files; by default RUN/products/infer-<step>."""


@dataclass(frozen=True, kw_only=True)
class ConvertSplatsFlags:
    """Write Gaussians in another file format, and report the loss of precision.

    Example: fieldwatch convert splats scan.spz -o scan.ply

    Read are .ply (3DGS, 2DGS, SuperSplat's compressed one), .spz, .sog, .splat and .ksplat, recognized by content. The
    file is written and read back; the differences are printed by quantity.
    """

    gaussians: tyro.conf.Positional[Path]
    """File of Gaussians, or the folder of an unbundled SOG."""
    out: Annotated[Path, tyro.conf.arg(aliases=("-o",))]
    """File to write: NAME.ply, NAME.compressed.ply, NAME.spz, NAME.sog or NAME.splat."""
    to: Literal["ply", "compressed-ply", "spz", "sog", "splat"] | None = None
    """Format to write; by default that of the ending of --out."""
    json: bool = False
    """Print the result as JSON, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class ExtractFlags:
    """Extract a mesh from a splats run: points on a level set of the Gaussians' density, and a surface through them.

    Example: fieldwatch mesh extract runs/garden --triangles 100000

    Example: fieldwatch mesh extract runs/garden --surface-level 0.1 0.3 0.5 --unseen close

    Writes RUN/mesh/level0.3.ply, a still, a turntable film, and level0.3.json with the steps and the quality. The mesh
    is the object that the cameras go around, or all that they see; surface that no photo shows is removed. Against
    holes: --trim 0 or --unseen close. Against bumps: a lower --resolution. To choose the part: --bbox x y z x y z,
    --pieces 1. With its surroundings: --background; those of one color without texture: --surroundings keep.
    If memory runs out: --memory GIB. Works at any checkpoint, also of an unfinished run. Flags of the original script
    (-l, -v, --bboxmin "(x,y,z)", --project_mesh_on_surface_points True, ...) work; its -v counted triangles, here it
    counts vertices. Exit codes: 0, or 2 if no mesh can be made.
    """

    run: tyro.conf.Positional[Path]
    """Run folder of `fieldwatch train splats`."""
    extraction: ExtractOptions = field(default_factory=ExtractOptions)
    checkpoint: str = "last"
    """Checkpoint: last, best (by held-out PSNR), or a step."""
    out: Path | None = None
    """Folder of the meshes; by default RUN/mesh."""
    pictures: bool = True
    """Render a still and a turntable film of each mesh."""
    json: bool = False
    """Print the outcome as JSON, and nothing else on standard output."""


@dataclass(frozen=True, kw_only=True)
class RefineFlags(NewRunFlags):
    """Refine a mesh: train Gaussians bound to its triangles together with its vertices, on the photos of a splats run.

    Example: fieldwatch mesh refine runs/garden runs/garden/mesh/surface.ply --preset short

    Example: fieldwatch mesh refine runs/garden mesh.obj --gaussians-per-triangle 3 --iterations 4000 --out runs/fine

    The Gaussians lie flat on the triangles; the rendering loss moves them and, through them, the vertices, while a
    normal consistency term keeps faces that share an edge alike. RUN gives photos, cameras, the split and the initial
    colors; MESH (.ply, .obj) is in its units. Neither is changed.

    The result is an ordinary run folder: `fieldwatch resume`, `eval`, `health`, `memory`, `tensorboard`, `infer splats`
    and `export` open it. products/ has the mesh with colors (refined_mesh.ply), the Gaussians as PLY (point_cloud.ply),
    SuGaR's refined .pt, renders and a turntable. Flags of the original scripts (--refinement-time short, -g, -f) work.

    Exit codes: 0 finished; 1 finished with an error among the findings (with --strict, or a warning); 2 bad input; 3
    diverged or failed.
    """

    main_flags: ClassVar[FlagGroups] = merged_groups(
        {
            "data and output": (),
            "method and quality": (
                "gaussians_per_triangle", "normal_consistency_weight", "first_colors", "dssim", "degree",
            ),
            "run length and evaluation": ("iterations", "test_iterations", "turntable"),
            "saving and resuming": ("checkpoint_interval", "keep_last", "keep_best"),
            "machine": ("device", "threads", "seed"),
        },
        NewRunFlags.main_flags,
    )  # fmt: skip

    run: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="RUN")]
    """Folder of a splats run."""
    mesh: Annotated[tyro.conf.Positional[Path], tyro.conf.arg(metavar="MESH")]
    """Mesh to refine."""
    out: Annotated[Path | None, tyro.conf.arg(aliases=("-o",))] = None
    """Run folder; by default RUN/refined/<name of the mesh>-<preset>. A refinement already there is continued."""
    preset: Literal["short", "medium", "long", "parity"] = "short"
    """short, medium, long: 2000, 7000, 15,000 steps; parity: SuGaR's own 15,000 steps and start."""
    refinement: RefineOptions = field(default_factory=REFINE_PRESETS["short"])


def refine_preset(words: Sequence[str]) -> RefineOptions:
    """Return the settings that ``--preset`` names.

    Raises:
        BadInput: there is no such preset.
    """
    return preset_of(words, REFINE_PRESETS, default="short")


def refine_flags(arguments: Sequence[str]) -> type[RefineFlags]:
    """Return the flags of `fieldwatch mesh refine`, with the defaults of the preset that is named.

    Raises:
        BadInput: there is no such preset.
    """
    settings = ("refinement", RefineOptions, field(default=refine_preset(translate_refine(arguments))))
    explained = {"__doc__": RefineFlags.__doc__}
    return make_dataclass("Flags", [settings], bases=(RefineFlags,), frozen=True, kw_only=True, namespace=explained)
