"""Read and write `cfg_args`, the training arguments of 3D Gaussian splatting stored as a Python call."""

import ast
from pathlib import Path
from typing import Any

from fieldwatch.recon.data.gaussians.error import SplatFolderError


def parse_settings(text: str, path: Path) -> dict[str, Any]:
    """Parse the arguments of `Namespace(a=1, b='x', ...)` without executing the text.

    Raises:
        SplatFolderError: if the text is not such a call, or an argument is not a literal.
    """
    try:
        # The file may come from an untrusted run, so it is parsed and never evaluated.
        call = ast.parse(text.strip(), mode="eval").body
        keywords = call.keywords if isinstance(call, ast.Call) and not call.args else []
        settings = {keyword.arg: ast.literal_eval(keyword.value) for keyword in keywords if keyword.arg is not None}
    except (ValueError, SyntaxError, MemoryError, RecursionError) as error:
        raise SplatFolderError(_unreadable(path, text)) from error
    # Without keywords, the call may still be something else, such as a list or a number.
    if not settings and text.replace(" ", "").strip() != "Namespace()":
        raise SplatFolderError(_unreadable(path, text))
    return settings


def _unreadable(path: Path, text: str) -> str:
    return (
        f"{path}: expected Namespace(name=value, ...) with literal values, as written by 3DGS, got "
        f"{text.strip()[:60]!r}; repair the file, or remove it (it is optional)"
    )


def settings_text(settings: dict[str, Any]) -> str:
    """Format settings as a `Namespace(...)` call that `parse_settings` reads back."""
    return f"Namespace({', '.join(f'{name}={value!r}' for name, value in sorted(settings.items()))})"
