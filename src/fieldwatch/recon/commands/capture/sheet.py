"""Contact sheet of a capture: all photos, those without a camera framed in red."""

import math
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from PIL import Image, ImageDraw

from fieldwatch.files import decoding
from fieldwatch.recon.commands.capture.outcome import CaptureOutcome
from fieldwatch.recon.data.capture import IMAGES, MASKS

TILE = (160, 120)
GAP = 4
_BACKGROUND = (44, 48, 54)
_MISSING = (220, 70, 60)
_TEXT = (235, 235, 235)


def contact_sheet(outcome: CaptureOutcome) -> UInt8[np.ndarray, "height width 3"]:
    """Return a sheet of all photos in their order.

    Those without a camera are darker, in a red frame. What masks leave out is darker, too.
    """
    photos = outcome.chosen.photos
    columns = math.ceil(math.sqrt(len(photos)))
    rows = math.ceil(len(photos) / columns)
    width, height = TILE
    sheet = Image.new("RGB", (columns * (width + GAP) + GAP, rows * (height + GAP) + GAP), _BACKGROUND)
    pen = ImageDraw.Draw(sheet)
    for number, photo in enumerate(photos):
        left = GAP + number % columns * (width + GAP)
        top = GAP + number // columns * (height + GAP)
        with decoding(), Image.open(outcome.folder / IMAGES / photo.name) as image:
            image.draft("RGB", TILE)
            tile = image.convert("RGB")
            tile.thumbnail(TILE, Image.Resampling.BOX)
        found = photo.name in outcome.registered
        if photo.name in outcome.agreements:
            tile = _dimmed(tile, outcome.folder / MASKS / f"{photo.name}.png")
        if not found:
            tile = Image.blend(tile, Image.new("RGB", tile.size), 0.5)
        sheet.paste(tile, (left + (width - tile.width) // 2, top + (height - tile.height) // 2))
        if not found:
            pen.rectangle((left, top, left + width - 1, top + height - 1), outline=_MISSING, width=3)
        pen.text((left + 5, top + 4), photo.name, fill=_TEXT, stroke_width=1, stroke_fill=(0, 0, 0))
    return np.asarray(sheet)


def _dimmed(tile: Image.Image, path: Path) -> Image.Image:
    """Darken the pixels that a mask leaves out."""
    with decoding(), Image.open(path) as opened:
        mask = opened.convert("L").resize(tile.size, Image.Resampling.BOX)
    return Image.composite(tile, Image.blend(tile, Image.new("RGB", tile.size), 0.75), mask)
