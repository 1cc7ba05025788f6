"""Page of a mesh: an interactive view of it, its grade, and its figures."""

import base64
from collections.abc import Mapping, Sequence
from importlib.resources import files
from typing import Any, Final

from fieldwatch.cli.kit import Panel, PanelKind, document, facts
from fieldwatch.recon.commands.view.turned import turned_kind
from fieldwatch.recon.mesh import MeshGrade, Triangles, write_glb

_KIND: Final = "mesh"
_GOOD: Final = 75
"""Score from which a grade is at least GOOD."""


def mesh_kind() -> PanelKind:
    """Return the kind of panel that shows a mesh, for `write_page`."""
    assets = files("fieldwatch.recon.commands.mesh") / "assets"
    return turned_kind(_KIND, *((assets / name).read_text("utf-8") for name in ("glb.js", "viewer.js")))


def mesh_panel(mesh: Triangles, *, up: Sequence[float]) -> Panel:
    """Return a panel with an interactive view of a mesh: colors, normals, clay or wireframe.

    The panel contains the mesh as a GLB file in base64, which its script parses and renders with WebGL2. After the
    first frame, its `figure` element has the attributes `data-state="drawn"`, `data-triangles` and `data-covered`, the
    fraction of the canvas that the mesh covers. If rendering fails, it has `data-state="failed"` and a message.

    Args:
        mesh: the mesh.
        up: its upward direction.
    """
    glb = write_glb(mesh, up=(up[0], up[1], up[2]))
    return {
        "id": "mesh",
        "title": "Mesh",
        "kind": _KIND,
        "about": "",
        "glb": base64.b64encode(glb).decode("ascii"),
    }


def mesh_account(
    mesh: Triangles, *, title: str, grade: MeshGrade, figures: Mapping[str, str], up: Sequence[float]
) -> dict[str, Any]:
    """Return the page of a mesh in the form of a run's account, for `write_page` with `mesh_kind`.

    Args:
        mesh: the mesh.
        title: heading of the page.
        grade: grade of the mesh.
        figures: names and values listed below the mesh, in order.
        up: upward direction of the mesh.
    """
    return document(
        title,
        facts=[f"{len(mesh.faces):,} triangles", f"{len(mesh.vertices):,} vertices"],
        label="Mesh",
        level="healthy" if grade.score >= _GOOD else "findings",
        headline=f"{grade.word}, {grade.score:.0f} of 100",
        detail="\n".join(grade.reasons),
        panels=[mesh_panel(mesh, up=up), facts("Figures", figures.items(), "")],
    )
