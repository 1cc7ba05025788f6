"""Checks of trained Gaussians for ``fieldwatch doctor``."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from fieldwatch.cli.kit import DataFinding, DataReport
from fieldwatch.recon.data import GaussianCloud, open_splat_folder, read_gaussians
from fieldwatch.recon.data.gaussians import is_sog_folder

# Opacity at which 3DGS prunes, and the fraction of such Gaussians that is reported.
_TRANSPARENT = 0.005
_NEARLY_ALL = 0.5
# Largest axis of a Gaussian, as a multiple of the extent of the scene.
_HUGE = 1.0
_SCALE_FLOOR = -60.0


def gaussians_report(path: Path, _options: None) -> DataReport:
    """Read and check a file of Gaussians of any format, or the folder of a 3DGS run.

    Raises:
        PlyError, SplatFileError: the file is damaged, or holds no Gaussians.
        SplatFolderError: the folder holds no trained splats, or an unreadable file.
    """
    facts: dict[str, Any] = {}
    findings: list[DataFinding] = []
    if path.is_dir() and not is_sog_folder(path):
        folder = open_splat_folder(path)
        cloud = folder.gaussians()
        kind = "a folder of 3D Gaussian splatting"
        facts |= {"iterations": list(folder.iterations), "cameras": len(folder.cameras)}
        source = folder.settings.get("source_path")
        facts["trained from"] = source
        command = f"fieldwatch train splats -c {path} -s {source or 'PHOTOS'}"
        findings += run_findings(cameras=len(folder.cameras), source=source)
    else:
        cloud = read_gaussians(path)
        kind = f"Gaussians ({'SOG' if path.is_dir() else path.suffix.lstrip('.').upper()})"
        command = f"fieldwatch convert splats {path} -o OTHER.ply, or train splats -c {path} -s PHOTOS"
    facts |= cloud_facts(cloud)
    findings += cloud_findings(cloud)
    return DataReport(path=path, kind=kind, facts=facts, notes=cloud.notes, findings=tuple(findings), command=command)


def run_findings(*, cameras: int, source: Any) -> Iterator[DataFinding]:
    """Check that cameras and photos for further training exist."""
    if not cameras:
        yield DataFinding(
            name="cameras",
            severity="warning",
            message="the run has no cameras.json: the poses of its photos are only in the COLMAP folder.",
            remedy="Give the folder of its training data, with images/ and sparse/ (-s).",
        )
    # The path in cfg_args is that of the machine that trained the model.
    if source and not Path(str(source)).expanduser().is_dir():
        yield DataFinding(
            name="source",
            severity="note",
            message=f"it was trained on {source}, which does not exist on this machine.",
            remedy="Give the folder of the photos on this machine (-s).",
        )


def cloud_facts(cloud: GaussianCloud) -> dict[str, Any]:
    """Return counts and sizes of a cloud of Gaussians."""
    # float64: the exponential of an extreme log scale overflows in float32.
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
    """Check for transparent Gaussians, and for Gaussians as large as the scene."""
    transparent = float((cloud.opacity_logits.double().sigmoid() < _TRANSPARENT).double().mean())
    if transparent > _NEARLY_ALL:
        yield DataFinding(
            name="transparent",
            severity="warning",
            message=(f"{transparent:.0%} of the Gaussians have an opacity below {_TRANSPARENT}: they are invisible."),
            remedy="The model is untrained, or was saved right after an opacity reset: use a later iteration.",
        )
    # torch.quantile accepts at most 16 million values: subsample. Outliers must not define the extent.
    spread = torch.quantile(
        cloud.means.double()[:: max(len(cloud) // 100000, 1)], torch.tensor([0.05, 0.95]).double(), 0
    )
    extent = float((spread[1] - spread[0]).norm())
    huge = int((cloud.log_scales.double().amax(1).exp() > _HUGE * extent).sum()) if extent > 0 else 0
    if huge:
        yield DataFinding(
            name="huge",
            severity="note",
            message=f"{huge} Gaussians are larger than the central 90 % of the scene ({extent:.3g} units across).",
            remedy="Some are normal in backgrounds; many mean that the scene was trained with a wrong extent.",
        )
