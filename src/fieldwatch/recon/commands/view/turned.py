"""Panels with something to turn, drawn with WebGL2: a mesh or Gaussians."""

from importlib.resources import files

from fieldwatch.cli.kit import PanelKind


def turned_kind(name: str, *scripts: str) -> PanelKind:
    """Return a kind of panel whose script uses the functions of `assets/orbit.js`.

    Args:
        name: name of the kind.
        scripts: parts of its script, in order.
    """
    assets = files("fieldwatch.recon.commands.view") / "assets"
    script = "\n".join([(assets / "orbit.js").read_text("utf-8"), *scripts])
    return PanelKind(name, script, (assets / "orbit.css").read_text("utf-8"))
