"""Photos of a scene with their cameras: found, straightened, sized, held in memory and split."""

from fieldwatch.data.photos.assemble import PhotoOptions, View, assemble
from fieldwatch.data.photos.error import PhotoError
from fieldwatch.data.photos.folder import PictureFolder, shortened
from fieldwatch.data.photos.photo import Photo, Picture
from fieldwatch.data.photos.photo_file import stored_size
from fieldwatch.data.photos.photo_set import PhotoSet, every_nth, no_points
from fieldwatch.data.photos.store import PhotoStream

__all__ = [
    "Photo",
    "PhotoError",
    "PhotoOptions",
    "PhotoSet",
    "PhotoStream",
    "Picture",
    "PictureFolder",
    "View",
    "assemble",
    "every_nth",
    "no_points",
    "shortened",
    "stored_size",
]
