"""Which part of a frame is used, and at what size: the `--crop` and `--resize` notation."""

from dataclasses import dataclass

from PIL import Image

from fieldwatch.recon.data.clip_error import ClipError

Size = tuple[int, int]
"""Height and width in pixels, in this order."""


def _numbers(text: str, option: str, forms: str) -> list[int]:
    """Read `text` as positive integers joined by underscores."""
    try:
        numbers = [int(part) for part in text.split("_")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        msg = f"--{option} is {text!r}, it must be {forms} with whole numbers of pixels, or -1 for none"
        raise ClipError(msg)
    return numbers


def _parse_crop(text: str) -> tuple[Size | None, bool]:
    """Return the size to cut out, and whether that comes after the resize."""
    if text == "-1":
        return None, False
    forms = "H_W or H_W_last"
    numbers = _numbers(text.removesuffix("_last"), "crop", forms)
    if len(numbers) != 2:
        msg = f"--crop is {text!r}, it must be {forms}, for example 640_1280 (height first)"
        raise ClipError(msg)
    return (numbers[0], numbers[1]), text.endswith("_last")


def _parse_resize(text: str) -> Size | int | None:
    """Return the exact size, the length of the shorter side, or None."""
    if text == "-1":
        return None
    forms = "H_W or one number for the shorter side"
    numbers = _numbers(text, "resize", forms)
    if len(numbers) > 2:
        msg = f"--resize is {text!r}, it must be {forms}, for example 320_640 (height first) or 320"
        raise ClipError(msg)
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


@dataclass(frozen=True, kw_only=True)
class Framing:
    """Centre crop and resize of every frame.

    Attributes:
        crop: `H_W` (cut before the resize), `H_W_last` (cut after it) or `-1`.
        resize: `H_W`, one number for the shorter side (the other is rounded down, as torchvision does) or `-1`.

    Raises:
        ClipError: for any other notation.
    """

    crop: str = "-1"
    resize: str = "-1"

    def __post_init__(self) -> None:
        """Refuse a notation that cannot be read."""
        _parse_crop(self.crop)
        _parse_resize(self.resize)

    def size_after(self, size: Size, name: str = "the frame") -> Size:
        """Return the size a frame of `size` ends with; `name` stands in the error if the crop does not fit."""
        crop, last = _parse_crop(self.crop)
        if crop is not None and not last:
            size = _checked_crop_size(size, crop, name)
        size = _resized_size(size, _parse_resize(self.resize))
        return _checked_crop_size(size, crop, name) if crop is not None and last else size

    def apply(self, image: Image.Image, name: str = "the frame") -> Image.Image:
        """Crop and resize an 8-bit image; bicubic with a support that grows when shrinking, so nothing aliases."""
        crop, last = _parse_crop(self.crop)
        if crop is not None and not last:
            image = _crop_image(image, crop, name)
        height, width = _resized_size((image.height, image.width), _parse_resize(self.resize))
        if (height, width) != (image.height, image.width):
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return _crop_image(image, crop, name) if crop is not None and last else image


def _resized_size(size: Size, wanted: Size | int | None) -> Size:
    if wanted is None:
        return size
    if isinstance(wanted, tuple):
        return wanted
    shorter = min(size)
    # Integer division truncates, as torchvision's resize does.
    height, width = (max(side * wanted // shorter, 1) for side in size)
    return height, width


def _checked_crop_size(size: Size, crop: Size, name: str) -> Size:
    if crop[0] > size[0] or crop[1] > size[1]:
        msg = (
            f"--crop {crop[0]}_{crop[1]} (height_width) is larger than {name}, which is {size[0]}_{size[1]}: "
            "ask for a smaller crop, or --crop -1 for none"
        )
        raise ClipError(msg)
    return crop


def _crop_image(image: Image.Image, crop: Size, name: str) -> Image.Image:
    height, width = _checked_crop_size((image.height, image.width), crop, name)
    top = (image.height - height) // 2
    left = (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))
