"""What the doctor says about clips, and about trained Gaussians."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fieldwatch.cli.doctor_report import DataFinding, DataReport
from fieldwatch.data import Clip, GaussianCloud, open_splat_folder, read_clip, read_gaussian_ply

_FEW = 8
_FLAT = 1.0  # of 255: a frame with less spread shows nothing
_TRANSPARENT = 0.005
_NEARLY_ALL = 0.5
_HUGE = 1.0
_SCALE_FLOOR = -60.0


def frames_report(path: Path) -> DataReport:
    """Read and check a folder of frames or a video file; every frame is decoded once.

    Raises:
        ClipError: no frames, or some that cannot be read.
    """
    clip = read_clip(path)
    try:
        findings = tuple(clip_findings(clip))
    finally:
        clip.close()
    facts: dict[str, Any] = {
        "frames": len(clip),
        "size (width x height)": f"{clip.width}x{clip.height}",
        "first": clip.names[0],
        "last": clip.names[-1],
        "bytes of all frames, decoded": 3 * len(clip) * clip.height * clip.width,
    }
    kind = "a video file" if path.is_file() else "a folder of frames"
    command = f"fieldwatch train video --data {path}"
    return DataReport(path=path, kind=kind, facts=facts, notes=clip.notes, findings=findings, command=command)


def clip_findings(clip: Clip) -> Iterator[DataFinding]:
    """Check for repeated frames, frames of one colour, and clips of a few frames."""
    repeated: list[str] = []
    flat: list[str] = []
    before = None
    for name, frame in zip(clip.names, clip, strict=True):
        if before is not None and torch.equal(frame, before):
            repeated.append(name)
        if float(frame.flatten(1)[:, ::7].float().std(1).max()) < _FLAT:
            flat.append(name)
        before = frame
    if repeated:
        yield DataFinding(
            name="repeated",
            severity="warning" if len(repeated) > 0.05 * len(clip) else "note",
            message=f"{len(repeated)} of {len(clip)} frames equal the one before, the first is {repeated[0]}.",
            remedy="A film whose rate was raised repeats frames: use --stride, or export it at its own rate.",
        )
    if flat:
        yield DataFinding(
            name="flat",
            severity="warning",
            message=f"{len(flat)} of {len(clip)} frames have one colour, the first is {flat[0]}.",
            remedy="Leave black beginnings and ends out, with --start and --count.",
        )
    if len(clip) < _FEW:
        yield DataFinding(
            name="frames",
            severity="warning",
            message=f"the clip has {len(clip)} frames: too few to hold some out.",
            remedy="Give a longer clip, or hold out none (--data-split 1_1_1).",
        )


def gaussians_report(path: Path) -> DataReport:
    """Read and check a PLY of Gaussians, or the folder of a 3DGS run.

    Raises:
        PlyError: the file is no PLY of Gaussians, or damaged.
        SplatFolderError: the folder holds no trained splats, or a file that cannot be read.
    """
    facts: dict[str, Any] = {}
    findings: list[DataFinding] = []
    if path.is_dir():
        folder = open_splat_folder(path)
        cloud, kind = folder.gaussians(), "a folder of 3D Gaussian splatting"
        facts |= {"iterations": list(folder.iterations), "cameras": len(folder.cameras)}
        source = folder.settings.get("source_path")
        facts["trained from"] = source
        command = f"fieldwatch train splats -c {path} -s {source or 'PHOTOS'}"
        findings += run_findings(cameras=len(folder.cameras), source=source)
    else:
        cloud, kind = read_gaussian_ply(path), "Gaussians (PLY)"
        command = "fieldwatch mesh quality MESH --gaussians, and splat viewers"
    facts |= cloud_facts(cloud)
    findings += cloud_findings(cloud)
    return DataReport(path=path, kind=kind, facts=facts, notes=(), findings=tuple(findings), command=command)


def run_findings(*, cameras: int, source: Any) -> Iterator[DataFinding]:
    """Check that the run left what training goes on from."""
    if not cameras:
        yield DataFinding(
            name="cameras",
            severity="warning",
            message="the run left no cameras.json: its photos cannot be placed without their COLMAP folder.",
            remedy="Give the folder that it was trained from, with images/ and sparse/ (-s).",
        )
    if source and not Path(str(source)).expanduser().is_dir():
        yield DataFinding(
            name="source",
            severity="note",
            message=f"it was trained from {source}, which is not on this machine.",
            remedy="Say where the photos are here (-s).",
        )


def cloud_facts(cloud: GaussianCloud) -> dict[str, Any]:
    """Say what a cloud of Gaussians holds."""
    sizes = cloud.log_scales.double().exp()
    return {
        "Gaussians": len(cloud),
        "degree of the spherical harmonics": cloud.degree,
        "box": {axis: [float(v.min()), float(v.max())] for axis, v in zip("xyz", cloud.means.T, strict=True)},
        "median size": float(sizes.median()),
        "median opacity": float(cloud.opacity_logits.double().sigmoid().median()),
        "columns of its own": sorted(cloud.extra),
        "3D filter (Mip-Splatting)": "yes" if cloud.filter_3d is not None else None,
    }


def cloud_findings(cloud: GaussianCloud) -> Iterator[DataFinding]:
    """Check for Gaussians that show nothing, and for ones as large as the scene."""
    clear = float((cloud.opacity_logits.double().sigmoid() < _TRANSPARENT).double().mean())
    if clear > _NEARLY_ALL:
        yield DataFinding(
            name="transparent",
            severity="warning",
            message=f"{clear:.0%} of the Gaussians have an opacity below {_TRANSPARENT}: they show nothing.",
            remedy="The model was taken right after an opacity reset, or is no trained one: take a later iteration.",
        )
    spread = torch.quantile(
        cloud.means.double()[:: max(len(cloud) // 100000, 1)], torch.tensor([0.05, 0.95]).double(), 0
    )
    extent = float((spread[1] - spread[0]).norm())
    huge = int((cloud.log_scales.double().amax(1).exp() > _HUGE * extent).sum()) if extent > 0 else 0
    if huge:
        yield DataFinding(
            name="huge",
            severity="note",
            message=f"{huge} Gaussians are larger than the middle of the scene ({extent:.3g} units across).",
            remedy="Backgrounds have some; where there are many, the scene was trained with a wrong extent.",
        )
