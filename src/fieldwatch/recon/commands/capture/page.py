"""Page of a capture: cameras and points to turn around, the contact sheet, and every photo with its reason."""

from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import UInt8
from PIL import Image

from fieldwatch.cli.kit import Panel, document, facts, points, table
from fieldwatch.recon.commands.capture.outcome import CaptureOutcome
from fieldwatch.recon.commands.picture_panel import picture_panel
from fieldwatch.recon.data.capture import MODEL
from fieldwatch.recon.data.colmap import ColmapModel, read_colmap_model

MOST_POINTS = 6000
_FRUSTUM = 0.06  # length of the drawn frustums, in radii of the scene


def capture_account(outcome: CaptureOutcome, sheet: UInt8[np.ndarray, "height width 3"]) -> dict[str, Any]:
    """Return the page of a capture in the form of a run's account, for `write_page`."""
    model = read_colmap_model(outcome.folder.joinpath(*MODEL))
    count = len(outcome.chosen.photos)
    found = len(outcome.registered)
    what = "frames" if outcome.chosen.kind == "film" else "photos"
    headline = f"{found} of {count} {what} have a camera"
    level = "failed" if outcome.is_poor else "findings" if found < count else "healthy"
    panels = [
        facts("In short", list(outcome.facts.items()), ""),
        scene_panel(model),
        _sheet_panel(sheet),
        *_tables(outcome),
    ]
    return document(
        f"Cameras of {Path(outcome.input).name}",
        facts=[outcome.input, f"train on it: {outcome.train_command}"],
        label="Cameras",
        level=level,
        headline=headline,
        detail=f"{outcome.mapped['points']:,} points, mean reprojection error "
        f"{outcome.mapped['reprojection_error']:.2f} pixels.",
        panels=panels,
    )


def scene_panel(model: ColmapModel) -> Panel:
    """Return a panel with the points and the cameras of a model, upright and scaled to the unit sphere."""
    poses = torch.stack([image.world_from_camera for image in model.images])
    positions = model.points.positions
    # Strided, so that the page is the same every time.
    stride = max(-(-len(positions) // MOST_POINTS), 1)
    shown = positions[::stride]
    colors = model.points.colors[::stride]
    every = torch.cat([shown, poses[:, :3, 3]])
    center = every.median(0).values
    # A few points are always far away: they must not shrink the rest.
    radius = float((every - center).norm(dim=-1).quantile(0.9)) or 1.0
    # Photos are mostly taken upright: the mean of their vertical axes (y points down) is the direction downwards.
    turn = _upright(-poses[:, :3, 1].mean(0))
    near = (shown - center).norm(dim=-1) < 3 * radius
    cameras = []
    for image, pose in zip(model.images, poses, strict=True):
        lens = model.lenses[image.camera_id]
        corners = torch.tensor(
            [
                [x * lens.width / 2 / lens.fx, y * lens.height / 2 / lens.fy, 1.0]
                for x, y in ((-1, -1), (1, -1), (1, 1), (-1, 1))
            ],
            dtype=torch.float64,
        )
        ends = _FRUSTUM * radius * corners @ pose[:3, :3].T + pose[:3, 3]
        drawn = (torch.cat([pose[None, :3, 3], ends]) - center) / radius @ turn.T
        cameras.append({"name": image.name, "corners": _rounded(drawn)})
    return points(
        "Cameras and points",
        _rounded((shown[near] - center) / radius @ turn.T),
        [int(value) for value in colors[near].flatten()],
        cameras,
        f"{len(model.images)} cameras, {int(near.sum()):,} of {len(positions):,} points. Drag to turn, scroll to zoom; "
        "with the keyboard: arrows, + and -.",
    )


def _upright(up: torch.Tensor) -> torch.Tensor:
    """Return the rotation that takes a direction to +z."""
    up = up / up.norm().clamp_min(1e-9)
    helper = torch.eye(3, dtype=up.dtype)[int(up.abs().argmin())]
    across = torch.linalg.cross(helper, up)
    across = across / across.norm().clamp_min(1e-9)
    return torch.stack([across, torch.linalg.cross(up, across), up])


def _rounded(values: torch.Tensor) -> list[float]:
    return [round(float(value), 3) for value in values.flatten()]


def _sheet_panel(sheet: UInt8[np.ndarray, "height width 3"]) -> Panel:
    picture = ("All photos", "those without a camera in a red frame", Image.fromarray(sheet))
    return picture_panel("photos", "Contact sheet", [picture])


def _tables(outcome: CaptureOutcome) -> list[Panel]:
    lost = [{"photo": each["source"], "reason": each["reason"]} for each in outcome.missing]
    lost += [{"photo": each.source, "reason": each.reason} for each in outcome.chosen.left_out]
    shown = outcome.registered
    masks = outcome.agreements
    rows = [
        {
            "photo": photo.name,
            "source": photo.source,
            "points": shown.get(photo.name),
            "sharpness": photo.sharpness,
            "mask": masks.get(photo.name),
        }
        for photo in outcome.chosen.photos
    ]
    columns = [("photo", "photo", False), ("source", "from", False), ("points", "points", True)]
    columns += [("sharpness", "gradient energy", True)]
    columns += [("mask", "overlap of its mask with the others", True)] if masks else []
    every = table("Photos", columns, rows, "")
    if not lost:
        return [every]
    return [table("Not used", (("photo", "photo", False), ("reason", "reason", False)), lost, ""), every]
