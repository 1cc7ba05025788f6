"""`cfg_args`: the text of a Python call that 3D Gaussian splatting leaves behind; read without running it."""

import ast
from pathlib import Path
from typing import Any

from fieldwatch.recon.data.gaussians.error import SplatFolderError


def parse_settings(text: str, path: Path) -> dict[str, Any]:
    """Return the arguments of `Namespace(a=1, b='x', ...)`; nothing in it is run.

    Raises:
        SplatFolderError: the text is no such call, or an argument is no plain value.
    """
    try:
        # Parsed, never evaluated: the file comes from other people's runs.
        call = ast.parse(text.strip(), mode="eval").body
        keywords = call.keywords if isinstance(call, ast.Call) and not call.args else []
        settings = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg is not None}
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise SplatFolderError(_unreadable(path, text)) from error
    if not settings and text.replace(" ", "").strip() != "Namespace()":
        raise SplatFolderError(_unreadable(path, text))
    return settings


def _unreadable(path: Path, text: str) -> str:
    return (
        f"{path} begins with {text.strip()[:60]!r}, it must be the Namespace(name=value, ...) that 3DGS writes, with "
        "plain values: repair it, or remove it (nothing needs it)"
    )


def settings_text(settings: dict[str, Any]) -> str:
    """Return the text of a call from which `parse_settings` gets the same."""
    return f"Namespace({', '.join(f'{name}={value!r}' for name, value in sorted(settings.items()))})"
