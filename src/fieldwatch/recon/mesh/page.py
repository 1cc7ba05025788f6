"""A mesh as one page of HTML that needs nothing else: no network, no library, no file beside it."""

import base64
import html
from collections.abc import Mapping
from importlib.resources import files

from fieldwatch.recon.mesh.error import MeshError
from fieldwatch.recon.mesh.glb import MAGIC

_SCRIPTS = ("glb.js", "viewer.js")


def mesh_page(glb: bytes, *, title: str, facts: Mapping[str, str]) -> str:
    """Return a page that shows a mesh to turn, zoom and move, by its colours, by its normals, as clay, as wireframe.

    The page draws with WebGL2 and reads the GLB file, which it holds as base64, itself. Its own policy forbids it to
    load anything. After the first frame its `body` has `data-state="drawn"`, `data-triangles`, and `data-covered`, the
    share of the window that the mesh covers; if it could not draw, `data-state="failed"` and a message.

    Args:
        glb: of `write_glb`; what is up in it is up in the page.
        title: of the page.
        facts: shown beside the mesh, in their order.

    Raises:
        MeshError: the bytes are no GLB file.
    """
    if not glb.startswith(MAGIC):
        msg = f"a page was asked for from {len(glb)} bytes that are no GLB file: make them with write_glb(mesh)"
        raise MeshError(msg)
    assets = files("fieldwatch.recon.mesh") / "assets"
    rows = [f"    <dt>{html.escape(name)}</dt><dd>{html.escape(value)}</dd>" for name, value in facts.items()]
    values = {
        "TITLE": html.escape(title),
        "STYLE": (assets / "page.css").read_text("utf-8"),
        "FACTS": "\n".join(rows),
        "GLB": base64.b64encode(glb).decode("ascii"),
        "SCRIPT": "\n".join((assets / name).read_text("utf-8") for name in _SCRIPTS),
    }
    chunks = (assets / "page.html").read_text("utf-8").split("%%")
    # Odd chunks are placeholder names between %% marks.
    return "".join(values[chunk] if index % 2 else chunk for index, chunk in enumerate(chunks))
