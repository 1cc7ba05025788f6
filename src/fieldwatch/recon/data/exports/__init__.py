"""Cameras as other programs export them: Metashape, RealityScan (RealityCapture), Polycam and Record3D."""

from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.data.exports.read import read_camera_export
from fieldwatch.recon.data.exports.recognize import cameras_of_export, is_camera_export, unread_export

__all__ = [
    "CameraExport",
    "ExportError",
    "ExportedCamera",
    "cameras_of_export",
    "is_camera_export",
    "read_camera_export",
    "unread_export",
]
