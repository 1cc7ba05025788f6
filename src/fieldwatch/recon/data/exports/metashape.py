"""Metashape's cameras.xml (File, Export, Export Cameras, Agisoft XML).

Formulas and axes are those of the appendix "Camera models" of the Metashape manual: camera axes right, down, forward;
the principal point relative to the center of the image; radial coefficients K1 to K4, tangential P1 and P2 (the order
is opposite to OpenCV's), affinity B1 and skew B2.
"""

import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch.recon.data.exports.axes import brown_lens, number, pose_of
from fieldwatch.recon.data.exports.error import ExportError
from fieldwatch.recon.data.exports.model import CameraExport, ExportedCamera
from fieldwatch.recon.geometry import Lens, LensError

PROGRAM = "Metashape"
_FISHEYE = frozenset({"fisheye", "equidistant_fisheye"})
_REMEDY = "export them again with File, Export, Export Cameras, Agisoft XML"


def read_metashape(file: Path) -> CameraExport:
    """Read the cameras of the first chunk; if it has several components, those of the largest.

    A transformation of the component or chunk is applied, so that poses have the coordinates of exported point clouds.

    Raises:
        ExportError: if the file is damaged, has no aligned cameras, or a sensor is not a frame or fisheye camera.
    """
    try:
        root = ET.fromstring(file.read_bytes())  # noqa: S314  expat limits how far entities expand
    except ET.ParseError as error:
        raise ExportError(f"{file} is not complete XML ({error}): {_REMEDY}") from error
    chunk = root if root.tag == "chunk" else root.find(".//chunk")
    if chunk is None:
        raise ExportError(f"{file} has no chunk with cameras, but {root.tag}: {_REMEDY}")
    sensors = {sensor.get("id", ""): sensor for sensor in chunk.iterfind("sensors/sensor")}
    listed = list(chunk.iterfind("cameras//camera"))
    posed = [camera for camera in listed if camera.get("enabled", "true") not in {"false", "0"}]
    posed = [camera for camera in posed if camera.find("transform") is not None]
    if not posed:
        raise ExportError(
            f"{file} has {len(listed)} cameras and none is aligned: run Align Photos in Metashape, and {_REMEDY}"
        )
    components = Counter(camera.get("component_id") for camera in posed)
    largest = components.most_common(1)[0][0]
    used = [camera for camera in posed if camera.get("component_id") == largest]
    frame = _frame(chunk, largest, str(file))
    lenses: dict[str, Lens] = {}
    for camera in used:
        sensor = camera.get("sensor_id", "")
        if sensor not in lenses:
            lenses[sensor] = _lens(sensors.get(sensor), f"{file}, sensor {sensor}")
    notes = [f"{len(listed) - len(posed)} of {len(listed)} cameras are disabled or not aligned"]
    notes += [f"{len(posed) - len(used)} cameras of {len(components) - 1} smaller components are left out"]
    return CameraExport(
        program=PROGRAM,
        file=file,
        cameras=tuple(_camera(camera, lenses[camera.get("sensor_id", "")], frame, file) for camera in used),
        photos=file.parent,
        notes=tuple(note for note, count in zip(notes, (len(listed) - len(posed), len(posed) - len(used)), strict=True)
                    if count),
    )  # fmt: skip


def _camera(
    camera: ET.Element, lens: Lens, frame: tuple[Float[Tensor, "3 3"], Float[Tensor, "3"], float], file: Path
) -> ExportedCamera:
    name = camera.get("label", "")
    where = f"{file}, camera {name}"
    matrix = torch.tensor(_numbers(camera.findtext("transform"), 16, where, "transform"), dtype=torch.float64)
    matrix = matrix.reshape(4, 4)
    rotation, translation, scale = frame
    position = scale * rotation @ matrix[:3, 3] + translation
    return ExportedCamera(
        name=name,
        lens=lambda _: lens,
        world_from_camera=pose_of(rotation @ matrix[:3, :3], position.tolist(), where, opengl=False),
    )


def _frame(
    chunk: ET.Element, component: str | None, where: str
) -> tuple[Float[Tensor, "3 3"], Float[Tensor, "3"], float]:
    """Return rotation, translation and scale from the coordinates of the cameras to those of the export."""
    found = [chunk.find(f"components/component[@id='{component}']/transform"), chunk.find("transform")]
    transform = next((each for each in found if each is not None), None)
    if transform is None:
        return torch.eye(3, dtype=torch.float64), torch.zeros(3, dtype=torch.float64), 1.0
    rotation = _numbers(transform.findtext("rotation", "1 0 0 0 1 0 0 0 1"), 9, where, "rotation")
    translation = _numbers(transform.findtext("translation", "0 0 0"), 3, where, "translation")
    scale = number(transform.findtext("scale", "1"), where, "scale")
    return (
        torch.tensor(rotation, dtype=torch.float64).reshape(3, 3),
        torch.tensor(translation, dtype=torch.float64),
        scale,
    )


def _lens(sensor: ET.Element | None, where: str) -> Lens:
    if sensor is None:
        raise ExportError(f"{where} is not in the file: {_REMEDY}")
    calibrations = sensor.findall("calibration")
    # The adjusted calibration is written beside the initial one.
    calibration = next((each for each in calibrations if each.get("class") == "adjusted"), None)
    calibration = calibration if calibration is not None else next(iter(calibrations), None)
    if calibration is None:
        raise ExportError(f"{where} has no calibration: align the photos, and {_REMEDY}")
    resolution = calibration.find("resolution")
    resolution = resolution if resolution is not None else sensor.find("resolution")
    if resolution is None:
        raise ExportError(f"{where} has no resolution: {_REMEDY}")
    width, height = (int(number(resolution.get(side), where, side)) for side in ("width", "height"))
    values = {each.tag: number(each.text, where, each.tag) for each in calibration if len(each) == 0 and each.text}
    kind = sensor.get("type", calibration.get("type", "frame"))
    if any(values.get(name) for name in ("p3", "p4")):
        raise ExportError(
            f"{where} has the coefficients p3 and p4 of old versions, which are not supported: export undistorted "
            "photos with their cameras (File, Export, Convert Images), or optimize the cameras without them"
        )
    if kind != "frame" and kind not in _FISHEYE:
        raise ExportError(
            f"{where} is a {kind} camera: expected frame or fisheye; convert the photos to frame cameras in Metashape "
            "(File, Export, Convert Images), and export their cameras"
        )
    return _calibrated(kind, (width, height), values, where)


def _calibrated(kind: str, size: tuple[int, int], values: Mapping[str, float], where: str) -> Lens:
    """Return the lens for the parameters of Metashape."""
    width, height = size
    focal = values.get("f", 0.0) or values.get("fy", 0.0)
    # Versions before 1.3 write fx and fy instead of f and b1.
    across = values.get("fx", focal + values.get("b1", 0.0))
    center = (width / 2 + values.get("cx", 0.0), height / 2 + values.get("cy", 0.0))
    radial = [values.get(f"k{i}", 0.0) for i in range(1, 5)]
    # Metashape's P1 is the coefficient of r^2 + 2 x^2 in x, which OpenCV calls p2.
    tangential = (values.get("p2", 0.0), values.get("p1", 0.0))
    skew = values.get("b2", 0.0) / across if across else 0.0
    if kind == "frame":
        return brown_lens(
            size, focal=(across, focal), center=center, radial=radial, tangential=tangential, skew=skew, where=where
        )
    k1, k2, k3, k4 = radial
    try:
        fisheye = Lens.of("THIN_PRISM_FISHEYE", *size, [across, focal, *center, k1, k2, *tangential, k3, k4, 0.0, 0.0])
    except LensError as error:
        raise ExportError(f"{where}: {error}; align and export the cameras again") from error
    return fisheye.with_distortion(fisheye.model, {**dict(fisheye.distortion), "skew": skew}) if skew else fisheye


def _numbers(text: str | None, count: int, where: str, name: str) -> list[float]:
    values = [number(each, where, name) for each in (text or "").split()]
    if len(values) != count:
        raise ExportError(f"{where}: expected {count} numbers in {name}, got {len(values)}: {_REMEDY}")
    return values
