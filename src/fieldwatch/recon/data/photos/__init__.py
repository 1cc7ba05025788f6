"""Photos of a scene with their cameras: found, undistorted, resized, cached and split."""

from fieldwatch.recon.data.photos.assembly import PhotoFiles, PhotoOptions, PosedPhoto, assemble
from fieldwatch.recon.data.photos.cache import PhotoStream
from fieldwatch.recon.data.photos.checking import CheckedPhoto, PhotoCandidate, UsablePhotos, check_photos
from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import PhotoFolder, shortened
from fieldwatch.recon.data.photos.photo import Photo, PhotoPixels, border_pixels
from fieldwatch.recon.data.photos.photo_file import read_reduced, stored_size
from fieldwatch.recon.data.photos.photo_set import PhotoSet, every_nth, no_points

__all__ = [
    "CheckedPhoto",
    "Photo",
    "PhotoCandidate",
    "PhotoError",
    "PhotoFiles",
    "PhotoFolder",
    "PhotoOptions",
    "PhotoPixels",
    "PhotoSet",
    "PhotoStream",
    "PosedPhoto",
    "UsablePhotos",
    "assemble",
    "border_pixels",
    "check_photos",
    "every_nth",
    "no_points",
    "read_reduced",
    "shortened",
    "stored_size",
]
