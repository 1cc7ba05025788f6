"""What a capture has found: facts, and the photos without a camera with the reason."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.text import Text

from fieldwatch.cli.kit import print_paths
from fieldwatch.recon.data.capture import IMAGES, MASKS, RECORD, REPORTS, CaptureError, Chosen, chosen_of, read_record

HALF = 0.5
"""Fraction of registered photos below which the command ends with 1."""
_LISTED = 8


@dataclass(frozen=True, kw_only=True)
class CaptureOutcome:
    """Outcome of a capture.

    Attributes:
        folder: folder of the scene.
        input: film or folder of photos.
        chosen: photos in `images/`.
        stages: results of the other stages by name.
    """

    folder: Path
    input: str
    chosen: Chosen
    stages: dict[str, dict[str, Any]]

    @property
    def mapped(self) -> dict[str, Any]:
        """Result of the mapping stage."""
        return self.stages["mapping"]

    @property
    def registered(self) -> dict[str, int]:
        """Number of points in each photo with a camera, by the name of the photo."""
        return {photo["name"]: photo["points"] for photo in self.mapped["registered"]}

    @property
    def missing(self) -> list[dict[str, str]]:
        """Photos in `images/` without a camera: source and reason."""
        return self.mapped["missing"]

    @property
    def agreements(self) -> dict[str, float]:
        """Agreement of each mask with those of the other photos, by the name of the photo; empty without masks."""
        masks = self.stages.get("masks", {})
        return {mask["name"]: mask["agreement"] for mask in masks.get("agreements", ())}

    @property
    def replaced_masks(self) -> list[str]:
        """Photos whose own mask disagreed with the others, and was replaced by their silhouette."""
        return list(self.stages.get("masks", {}).get("replaced", ()))

    @property
    def is_poor(self) -> bool:
        """Whether fewer than half of the photos have a camera."""
        return len(self.registered) < HALF * len(self.chosen.photos)

    @property
    def facts(self) -> dict[str, str]:
        """Facts for people."""
        count = len(self.chosen.photos)
        matched = self.stages["matching"]
        what = "frames" if self.chosen.kind == "film" else "photos"
        cameras = self.mapped["cameras"]
        focal = sorted(camera["parameters"][0] for camera in cameras)
        span = f"{focal[0]:.1f}" if len(focal) == 1 else f"{focal[0]:.1f} to {focal[-1]:.1f}"
        models = self.mapped["models"]
        return {
            "registered": f"{len(self.registered)} of {count} {what}, by the {self.mapped['mapper']} mapper",
            "reprojection error": f"{self.mapped['reprojection_error']:.2f} pixels (mean)",
            "points": f"{self.mapped['points']:,}",
            "cameras": f"{len(cameras)} ({cameras[0]['model']}), focal length {span} pixels",
            "matched": f"{matched['verified']:,} of {matched['pairs']:,} pairs ({matched['matching']})",
            "masks": self._masks_in_words(),
            "left out": f"{len(self.chosen.left_out)} {what} before matching" if self.chosen.left_out else "",
            "other models": ", ".join(f"{each} {what}" for each in models[1:]),
        }

    def _masks_as_json(self) -> dict[str, Any]:
        separation = self.stages["masks"]["separation"]
        return {"agreement": self.agreements, "separation": separation, "replaced": self.replaced_masks}

    def _masks_in_words(self) -> str:
        values = sorted(self.agreements.values())
        if not values:
            return ""
        median = values[len(values) // 2]
        lowest = min(self.agreements, key=self.agreements.__getitem__)
        doubtful = len(self.replaced_masks)
        rest = f"; {doubtful} disagreed and are the silhouette of the others" if doubtful else ""
        apart = self.stages["masks"]["separation"]
        return (
            f"overlap with the other photos' masks {median:.0%} (median), {values[0]:.0%} ({lowest}); colors tell the "
            f"object apart in {apart:.0%} of the pixels{rest}"
        )

    @property
    def files(self) -> dict[str, Path]:
        """Files of the scene."""
        folder = self.folder.absolute()
        page, sheet = (folder / name for name in REPORTS)
        masks = {"masks": folder / MASKS} if self.agreements else {}
        return {"scene": folder, "photos": folder / IMAGES, **masks, "report": page, "contact sheet": sheet}

    @property
    def train_command(self) -> str:
        """Command that trains on the scene."""
        return f"fieldwatch train splats --data {shlex.quote(str(self.folder))}"

    def as_json(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {
            "input": self.input,
            "kind": self.chosen.kind,
            "photos": len(self.chosen.photos),
            "registered": len(self.registered),
            "missing": self.missing,
            "left_out": [{"source": each.source, "reason": each.reason} for each in self.chosen.left_out],
            "reprojection_error": self.mapped["reprojection_error"],
            "points": self.mapped["points"],
            "cameras": self.mapped["cameras"],
            "mapper": self.mapped["mapper"],
            "models": self.mapped["models"],
            "matching": self.stages["matching"],
            "features": self.stages["features"]["features"],
            "masks": self._masks_as_json() if self.agreements else None,
            "files": {name.replace(" ", "_"): path for name, path in self.files.items()},
            "exit_code": int(self.is_poor),
        }


def outcome_of(folder: Path) -> CaptureOutcome:
    """Return the outcome of a complete capture.

    Raises:
        CaptureError: the folder holds none, or it is not complete.
    """
    record = read_record(folder)
    if record is None or "mapping" not in record.stages:
        raise CaptureError(f"{folder / RECORD} lists no complete capture: run `fieldwatch data photos` again")
    results = {name: stage["result"] for name, stage in record.stages.items()}
    return CaptureOutcome(folder=folder, input=record.input, chosen=chosen_of(record), stages=results)


def print_outcome(console: Console, outcome: CaptureOutcome) -> None:
    """Print facts, and the photos that are not used with the reason."""
    print_paths(console, {name: value for name, value in outcome.facts.items() if value})
    lost = [(each["source"], each["reason"]) for each in outcome.missing]
    lost += [(each.source, each.reason) for each in outcome.chosen.left_out]
    for source, reason in lost[:_LISTED]:
        console.print(Text(f"  not used: {source}: {reason}"), soft_wrap=True)
    if len(lost) > _LISTED:
        console.print(Text(f"  not used: {len(lost) - _LISTED} more, see the report"))
    if outcome.is_poor:
        message = (
            f"  only {len(outcome.registered)} of {len(outcome.chosen.photos)} have a camera: move slowly, with two "
            "thirds of overlap, and see the reasons above"
        )
        console.print(Text(message, style="yellow"), soft_wrap=True)
