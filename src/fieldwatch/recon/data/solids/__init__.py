"""A ray-traced synthetic scene with a known surface, for training and evaluating splats without data."""

from fieldwatch.recon.data.solids.photos import forward_cameras, forward_photos, solid_cameras, solid_photos
from fieldwatch.recon.data.solids.scene import SolidScene

__all__ = ["SolidScene", "forward_cameras", "forward_photos", "solid_cameras", "solid_photos"]
