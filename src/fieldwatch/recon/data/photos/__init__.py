"""Photos of a scene with their cameras: found, straightened, sized, held in memory and split."""

from fieldwatch.recon.data.photos.assemble import PhotoOptions, View, assemble
from fieldwatch.recon.data.photos.cache import PhotoStream
from fieldwatch.recon.data.photos.checking import Candidate, Checked, Sifted, sift_photos
from fieldwatch.recon.data.photos.error import PhotoError
from fieldwatch.recon.data.photos.folder import PictureFolder, shortened
from fieldwatch.recon.data.photos.photo import Photo, Picture
from fieldwatch.recon.data.photos.photo_file import stored_size
from fieldwatch.recon.data.photos.photo_set import PhotoSet, every_nth, no_points

__all__ = [
    "Candidate",
    "Checked",
    "Photo",
    "PhotoError",
    "PhotoOptions",
    "PhotoSet",
    "PhotoStream",
    "Picture",
    "PictureFolder",
    "Sifted",
    "View",
    "assemble",
    "every_nth",
    "no_points",
    "shortened",
    "sift_photos",
    "stored_size",
]
