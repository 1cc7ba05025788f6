"""Scenes with a transforms*.json: Blender's synthetic scenes, instant-ngp and Nerfstudio."""

from fieldwatch.recon.data.transforms.error import TransformsError
from fieldwatch.recon.data.transforms.frame import lens_of, pose_of
from fieldwatch.recon.data.transforms.read import read_transforms

__all__ = ["TransformsError", "lens_of", "pose_of", "read_transforms"]
