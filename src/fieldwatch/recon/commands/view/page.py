"""Page of Gaussians: an interactive view of them, which opens offline, and what was left out of it."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from fieldwatch.cli.kit import Panel, PanelKind, document, facts
from fieldwatch.files import nbytes
from fieldwatch.recon.commands.view.packing import PackedGaussians, pack_gaussians
from fieldwatch.recon.commands.view.scene import ViewedScene, first_view, upright
from fieldwatch.recon.commands.view.turned import turned_kind

_KIND: Final = "gaussians"


def gaussians_kind() -> PanelKind:
    """Return the kind of panel that shows Gaussians, for `write_page`."""
    script = (files("fieldwatch.recon.commands.view") / "assets" / "splats.js").read_text("utf-8")
    return turned_kind(_KIND, script)


def gaussians_panel(packed: PackedGaussians) -> Panel:
    """Return a panel with an interactive view of Gaussians: colors, depth, normals, or centers.

    Its script sorts them on the CPU and draws them with WebGL2. After the first frame, its `figure` element has the
    attributes `data-state="drawn"`, `data-gaussians` and `data-covered`, the fraction of the canvas that they cover. If
    drawing fails, it has `data-state="failed"` and a message.
    """
    return {
        "id": "scene",
        "title": "Gaussians",
        "kind": _KIND,
        "about": "Colors depend on the view by spherical harmonics of degree 1 at most.",
        "packed": packed.packed,
        "count": packed.count,
        "unit": packed.unit,
        "reach": packed.reach,
        "tilt": packed.tilt,
        "log_scale": list(packed.log_scale),
        "radius": packed.radius,
    }


def gaussians_account(scene: ViewedScene, *, most: int) -> tuple[dict[str, Any], Mapping[str, str]]:
    """Return the page of Gaussians in the form of a run's account, for `write_page`, and the figures that it lists.

    Raises:
        InputError: nothing is visible, or a value is not finite.
    """
    cloud = scene.gaussians
    assert cloud is not None  # noqa: S101  meshes have a page of their own
    middle, radius = first_view(scene)
    packed = pack_gaussians(cloud, most=most, frame=upright(scene.up), middle=middle, radius=radius)
    figures = {
        "Gaussians": f"{len(cloud):,}",
        "on this page": f"{packed.count:,}",
        "left out": _left_out(packed),
        "degree of the spherical harmonics": _degree(cloud.degree),
        "cameras": f"{len(scene.cameras):,}" if scene.cameras else "",
        "data": nbytes(len(packed.packed)),
    }
    shown = {name: value for name, value in figures.items() if value}
    account = document(
        scene.title,
        facts=[f"{packed.count:,} Gaussians"],
        label="Gaussians",
        level="notes",
        headline=_headline(packed),
        detail="\n".join(scene.notes),
        panels=[gaussians_panel(packed), facts("Figures", shown.items(), "")],
    )
    return account, shown


def _headline(packed: PackedGaussians) -> str:
    if not packed.left_out:
        return f"All {packed.count:,} visible Gaussians"
    of = packed.count + packed.left_out
    return f"{packed.count:,} of {of:,} visible Gaussians, with {packed.kept:.2%} of their area times opacity"


def _degree(degree: int) -> str:
    return f"{degree}" if degree <= 1 else f"{degree} (on this page 1)"


def _left_out(packed: PackedGaussians) -> str:
    parts = (
        (packed.invisible, "with an opacity below 1/255"),
        (packed.left_out, "with the smallest area times opacity (see --most)"),
    )
    return "; ".join(f"{count:,} {why}" for count, why in parts if count)
