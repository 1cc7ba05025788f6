"""A made-up scene with a known surface, ray-traced: what splats can be trained on and judged by without any data."""

from fieldwatch.recon.data.solids.photos import forward_cameras, forward_photos, solid_cameras, solid_photos
from fieldwatch.recon.data.solids.scene import SolidScene

__all__ = ["SolidScene", "forward_cameras", "forward_photos", "solid_cameras", "solid_photos"]
