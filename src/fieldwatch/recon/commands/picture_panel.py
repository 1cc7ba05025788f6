"""Panel of pictures on a page, embedded so that the page opens offline."""

import base64
import io
from collections.abc import Iterable

from PIL import Image

from fieldwatch.cli.kit import Panel

_QUALITY = 85


def picture_panel(identity: str, title: str, pictures: Iterable[tuple[str, str, Image.Image]]) -> Panel:
    """Return a panel of pictures.

    Args:
        identity: identifier of the panel on its page.
        title: heading.
        pictures: title, caption and RGB image of each picture.
    """
    items = [{"title": name, "caption": caption, "src": _jpeg_uri(image)} for name, caption, image in pictures]
    return {"id": identity, "title": title, "kind": "images", "about": "", "items": items}


def _jpeg_uri(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "JPEG", quality=_QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(file.getvalue()).decode("ascii")
