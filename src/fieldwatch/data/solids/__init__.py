"""A made-up scene with a known surface, ray-traced: what splats can be trained on and judged by without any data."""

from fieldwatch.data.solids.photos import solid_cameras, solid_photos
from fieldwatch.data.solids.scene import SolidScene

__all__ = ["SolidScene", "solid_cameras", "solid_photos"]
