"""Center crop and resize of frames, and the notation of `--crop` and `--resize`."""

from dataclasses import dataclass

from PIL import Image

from fieldwatch.recon.data.clip_error import ClipError

Size = tuple[int, int]
"""(height, width) in pixels."""


def _numbers(text: str, option: str, forms: str) -> list[int]:
    """Parse positive integers joined by underscores.

    Raises:
        ClipError: if the text has another form.
    """
    try:
        numbers = [int(part) for part in text.split("_")]
    except ValueError:
        numbers = []
    if not numbers or min(numbers) < 1:
        msg = f"--{option} must be {forms} in whole pixels, or -1 for none, got {text!r}"
        raise ClipError(msg)
    return numbers


def _parse_crop(text: str) -> tuple[Size | None, bool]:
    """Return the crop size, or None, and whether to crop after the resize."""
    if text == "-1":
        return None, False
    forms = "H_W or H_W_last"
    # The suffix is removed first, since it would not parse as a number.
    numbers = _numbers(text.removesuffix("_last"), "crop", forms)
    if len(numbers) != 2:
        msg = f"--crop must be {forms}, for example 640_1280 (height first), got {text!r}"
        raise ClipError(msg)
    return (numbers[0], numbers[1]), text.endswith("_last")


def _parse_resize(text: str) -> Size | int | None:
    """Return the exact size, the length of the shorter side, or None."""
    if text == "-1":
        return None
    forms = "H_W or one number for the shorter side"
    numbers = _numbers(text, "resize", forms)
    if len(numbers) > 2:
        msg = f"--resize must be {forms}, for example 320_640 (height first) or 320, got {text!r}"
        raise ClipError(msg)
    return numbers[0] if len(numbers) == 1 else (numbers[0], numbers[1])


@dataclass(frozen=True, kw_only=True)
class Framing:
    """Center crop and resize of every frame.

    Attributes:
        crop: `H_W` (crop before the resize), `H_W_last` (crop after it) or `-1` for none.
        resize: `H_W`, one number for the shorter side (the other side is rounded down, as in torchvision), or `-1` for
            none.

    Raises:
        ClipError: if the notation is invalid.
    """

    crop: str = "-1"
    resize: str = "-1"

    def __post_init__(self) -> None:
        """Validate the notation."""
        _parse_crop(self.crop)
        _parse_resize(self.resize)

    def size_after(self, size: Size, name: str = "the frame") -> Size:
        """Return the output size for a frame of `size`; `name` identifies the frame in errors.

        Raises:
            ClipError: if the crop is larger than the frame.
        """
        crop, last = _parse_crop(self.crop)
        if crop is not None and not last:
            size = _checked_crop_size(size, crop, name)
        # The same order as in `apply`: crop, resize, crop.
        size = _resized_size(size, _parse_resize(self.resize))
        return _checked_crop_size(size, crop, name) if crop is not None and last else size

    def apply(self, image: Image.Image, name: str = "the frame") -> Image.Image:
        """Crop and resize an 8-bit image, with antialiased bicubic interpolation.

        Raises:
            ClipError: if the crop is larger than the image.
        """
        crop, last = _parse_crop(self.crop)
        if crop is not None and not last:
            image = _crop_image(image, crop, name)
        height, width = _resized_size((image.height, image.width), _parse_resize(self.resize))
        if (height, width) != (image.height, image.width):
            # Pillow widens the filter when downscaling, which prevents aliasing.
            image = image.resize((width, height), Image.Resampling.BICUBIC)
        return _crop_image(image, crop, name) if crop is not None and last else image


def _resized_size(size: Size, resize: Size | int | None) -> Size:
    if resize is None:
        return size
    if isinstance(resize, tuple):
        return resize
    shorter = min(size)
    # Integer division truncates like torchvision's resize; max keeps at least one pixel of very elongated frames.
    height, width = (max(side * resize // shorter, 1) for side in size)
    return height, width


def _checked_crop_size(size: Size, crop: Size, name: str) -> Size:
    if crop[0] > size[0] or crop[1] > size[1]:
        msg = (
            f"--crop {crop[0]}_{crop[1]} (height_width) is larger than {name}, which is {size[0]}_{size[1]}: "
            "use a smaller crop, or --crop -1 for none"
        )
        raise ClipError(msg)
    return crop


def _crop_image(image: Image.Image, crop: Size, name: str) -> Image.Image:
    height, width = _checked_crop_size((image.height, image.width), crop, name)
    # An odd remainder leaves one more pixel at the bottom or right.
    top = (image.height - height) // 2
    left = (image.width - width) // 2
    return image.crop((left, top, left + width, top + height))
