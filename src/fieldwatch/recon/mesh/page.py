"""A self-contained HTML page that shows a mesh without network access, libraries or other files."""

import base64
import html
from collections.abc import Mapping
from importlib.resources import files

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.glb import MAGIC

_SCRIPTS = ("glb.js", "viewer.js")


def mesh_page(glb: bytes, *, title: str, facts: Mapping[str, str]) -> str:
    """Return an HTML page with an interactive view of a mesh: colors, normals, clay or wireframe.

    The page embeds the GLB file as base64, parses it and renders with WebGL2. Its content security policy forbids
    loading anything. After the first frame, `body` has the attributes `data-state="drawn"`, `data-triangles` and
    `data-covered`, the fraction of the window that the mesh covers. If rendering fails, it has `data-state="failed"`
    and a message.

    Args:
        glb: output of `write_glb`; its up direction is that of the page.
        title: title of the page.
        facts: names and values shown next to the mesh, in order.

    Raises:
        MeshError: `glb` is not a GLB file.
    """
    if not glb.startswith(MAGIC):
        msg = f"expected a GLB file, got {len(glb)} bytes that are none: make them with write_glb(mesh)"
        raise MeshError(msg)
    assets = files("fieldwatch.recon.mesh") / "assets"
    rows = [f"    <dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items()]
    # Texts are escaped; CSS, scripts and base64 are inserted unchanged.
    values = {
        "TITLE": html.escape(title),
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "FACTS": "\n".join(rows),
        "GLB": base64.b64encode(glb).decode("ascii"),
        "SCRIPT": "\n".join((assets / name).read_text("utf-8") for name in _SCRIPTS),
    }
    chunks = (assets / "page.html").read_text("utf-8").split("%%")
    # Odd chunks are placeholder names between %% marks. Split once, so that values may contain %%.
    return "".join(values[chunk] if index % 2 else chunk for index, chunk in enumerate(chunks))
