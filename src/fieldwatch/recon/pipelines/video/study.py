"""Study of a model's quality on every patch, and at positions between the trained patches; as CSV files.

Frame values are means over patches in dB, as in the original scripts. The pooled columns use the mean of the squared
error, which gives lower values, and is what other papers report.
"""

import csv
import io
import itertools
import math
import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional

from fieldwatch.files import output_path, write_file
from fieldwatch.recon.data import PatchGrid
from fieldwatch.recon.pipelines.video.models import Prediction, Query, Unit, VideoGeometry
from fieldwatch.recon.pipelines.video.quality import psnr, ssim
from fieldwatch.recon.pipelines.video.split import Label

Category = Literal["trained_center", "untrained_middle_h", "untrained_middle_v", "untrained_corner"]
MEASURES = ("psnr", "ssim", "clip_similarity")


@dataclass(frozen=True, kw_only=True)
class StudiedModel:
    """A model's rendering function and the clip it should reproduce.

    Attributes:
        draw: the model, or any function from `Query` to `Prediction`.
        unit: unit of one row of its query (`VideoModel.unit`).
        geometry: size of the clip and its patch grid.
        frame: function from an index to the frame in [0, 1], on the device of the queries.
        splits: "train", "val" or "unused" per frame.
        targets: unit-norm embedding per patch, row-major; None leaves the CLIP columns empty.
    """

    draw: Callable[[Query], Prediction]
    unit: Unit
    geometry: VideoGeometry
    frame: Callable[[int], Float[Tensor, "3 height width"]]
    splits: Sequence[Label]
    targets: Float[Tensor, "frames patches dim"] | None = None

    def __post_init__(self) -> None:
        """Check that splits, targets and frames match the geometry."""
        g = self.geometry
        if len(self.splits) != g.frames:
            raise ValueError(f"expected one split for each of {g.frames} frames, got {len(self.splits)}")
        if self.targets is not None and self.targets.shape[:2] != (g.frames, g.rows * g.columns):
            shape = tuple(self.targets.shape[:2])
            expected = (g.frames, g.rows * g.columns)
            raise ValueError(f"expected targets for {expected} frames and patches, got {shape}: encode this grid")
        # Only the first frame is checked: a clip has frames of one size.
        size = tuple(self.frame(0).shape)
        if size != (3, g.height, g.width):
            msg = f"expected frames of shape {(3, g.height, g.width)}, got {size}: load the clip with this geometry"
            raise ValueError(msg)


@dataclass(frozen=True, kw_only=True)
class Position:
    """A window of patch size.

    Attributes:
        norm_x: x of the center / frame width.
        norm_y: y of the center / frame height.
        position_type: "center_<row>_<column>", "mid_h_...", "mid_v_..." or "corner_...".
        category: relation of the position to the patch centers that the model was trained on.
    """

    norm_x: float
    norm_y: float
    position_type: str
    category: Category


@dataclass(frozen=True, kw_only=True)
class PatchScore:
    """A row of all_patches_detailed.csv."""

    frame_idx: int
    patch_idx: int
    psnr: float
    ssim: float
    clip_similarity: float | None
    split: Label


@dataclass(frozen=True, kw_only=True)
class PositionScore:
    """A row of fractional_positions_detailed.csv."""

    frame_idx: int
    norm_x: float
    norm_y: float
    position_type: str
    category: Category
    psnr: float
    ssim: float
    split: Label


def positions(geometry: VideoGeometry) -> list[Position]:
    """Return patch centers, midpoints between horizontal and vertical neighbors, and points where four patches meet.

    A grid of r x c patches has (2 r - 1)(2 c - 1) of them: 21 for 2 x 4.
    """
    # Name, category, and the offset to the next patch below and to the right.
    kinds: tuple[tuple[str, Category, int, int], ...] = (
        ("center", "trained_center", 0, 0),
        ("mid_h", "untrained_middle_h", 0, 1),
        ("mid_v", "untrained_middle_v", 1, 0),
        ("corner", "untrained_corner", 1, 1),
    )
    return [
        Position(
            norm_x=(column + (1 + across) / 2) * geometry.patch_width / geometry.width,
            norm_y=(row + (1 + down) / 2) * geometry.patch_height / geometry.height,
            position_type=f"{name}_{row}_{column}",
            category=category,
        )
        for name, category, down, across in kinds
        for row in range(geometry.rows - down)
        for column in range(geometry.columns - across)
    ]


def cut(
    frame: Float[Tensor, "3 height width"], window_positions: Sequence[Position], geometry: VideoGeometry
) -> Float[Tensor, "windows 3 patch_height patch_width"]:
    """Cut windows of patch size around positions, shifted to lie inside the frame."""
    grid = PatchGrid(geometry.rows, geometry.columns, geometry.height, geometry.width)
    return torch.stack([grid.window(position.norm_x, position.norm_y).cut(frame) for position in window_positions])


def draw_windows(
    subject: StudiedModel, index: int, frame: Float[Tensor, "3 height width"], window_positions: Sequence[Position]
) -> tuple[Float[Tensor, "windows 3 patch_height patch_width"], Float[Tensor, "embeddings dim"] | None]:
    """Render the windows at positions of one frame, and their embeddings.

    A patch model is queried at every position (one embedding each). A frame model renders the frame, from which windows
    are cut; its embeddings are those of the patch grid.

    Args:
        subject: the model and its geometry.
        index: index of the frame.
        frame: the frame itself, for models that encode it.
        window_positions: positions of the windows.
    """
    # A frame model renders the whole frame once for all windows.
    rows = len(window_positions) if subject.unit == "patch" else 1
    t = torch.full((rows,), index / subject.geometry.frames, dtype=torch.float64, device=frame.device)
    if subject.unit == "frame":
        half = torch.full_like(t, 0.5)
        prediction = subject.draw(Query(t=t, x=half, y=half, frames=frame[None]))
        embedding = None if prediction.embedding is None else prediction.embedding[0]
        return cut(prediction.rgb[0], window_positions, subject.geometry), embedding
    x, y = (torch.tensor(axis, dtype=torch.float64, device=frame.device) for axis in _centers(window_positions))
    prediction = subject.draw(Query(t=t, x=x, y=y))
    embedding = None if prediction.embedding is None else prediction.embedding[:, 0]
    return prediction.rgb, embedding


@torch.no_grad()
def score_patches(subject: StudiedModel) -> list[PatchScore]:
    """Score every patch of the train and val frames, in frame order."""
    centers = [position for position in positions(subject.geometry) if position.category == "trained_center"]
    scores = []
    for index, split in enumerate(subject.splits):
        # Unused frames are in neither set, so they count toward no mean.
        if split == "unused":
            continue
        frame = subject.frame(index)
        rendered, embedding = draw_windows(subject, index, frame, centers)
        truth = cut(frame, centers, subject.geometry)
        columns = (
            psnr(rendered, truth).tolist(),
            ssim(rendered, truth).tolist(),
            _similarity(subject, index, embedding),
        )
        scores += [
            PatchScore(frame_idx=index, patch_idx=i, psnr=p, ssim=s, clip_similarity=c, split=split)
            for i, (p, s, c) in enumerate(zip(*columns, strict=True))
        ]
    return scores


@torch.no_grad()
def score_positions(subject: StudiedModel, frames: Iterable[int]) -> list[PositionScore]:
    """Score all `positions` of the given frames."""
    window_positions = positions(subject.geometry)
    scores = []
    for index in frames:
        frame = subject.frame(index)
        rendered, _ = draw_windows(subject, index, frame, window_positions)
        truth = cut(frame, window_positions, subject.geometry)
        scores += [
            PositionScore(frame_idx=index, **asdict(position), psnr=p, ssim=s, split=subject.splits[index])
            for position, p, s in zip(
                window_positions, psnr(rendered, truth).tolist(), ssim(rendered, truth).tolist(), strict=True
            )
        ]
    return scores


def pooled_psnr(values: Iterable[float]) -> float:
    """Return the PSNR of the mean squared error over windows of equal size, given the PSNR of each (data range 1)."""
    # PSNR is not linear in the error, so errors are averaged instead of PSNR values.
    return -10 * math.log10(statistics.fmean(10 ** (-value / 10) for value in values))


def frame_statistics(scores: Sequence[PatchScore]) -> list[dict[str, float | str | None]]:
    """Return the rows of per_frame_stats.csv: mean, min, max, sample std over patches, and pooled PSNR."""
    rows = []
    # `groupby` needs sorted input: scores are in frame order.
    for frame, group in itertools.groupby(scores, key=lambda score: score.frame_idx):
        patches = list(group)
        row: dict[str, float | str | None] = {"frame_idx": frame, "split": patches[0].split}
        for measure in MEASURES:
            values = _values(patches, measure)
            row |= {f"mean_{measure}": _mean(values), f"min_{measure}": min(values, default=None)}
            row |= {f"max_{measure}": max(values, default=None), f"std_{measure}": _std(values)}
        rows.append(row | {"pooled_psnr": pooled_psnr(patch.psnr for patch in patches)})
    return rows


def summary(scores: Sequence[PatchScore]) -> dict[str, float | None]:
    """Return the row of summary_stats.csv: means, sample stds, counts and pooled PSNR of all, train and val patches.

    A set without patches has None for all but its count.
    """
    sets = {"overall": list(scores)} | {name: [s for s in scores if s.split == name] for name in ("train", "val")}
    row: dict[str, float | None] = {}
    for name, members in sets.items():
        row |= {f"{name}_{measure}": _mean(_values(members, measure)) for measure in MEASURES}
        if name != "overall":
            row |= {f"{name}_{measure}_std": _std(_values(members, measure)) for measure in MEASURES}
    row |= {f"{name}_patches": len(sets[name]) for name in ("train", "val")}
    pooled = {name: pooled_psnr(_values(members, "psnr")) if members else None for name, members in sets.items()}
    return row | {f"{name}_pooled_psnr": value for name, value in pooled.items()}


def category_summary(scores: Sequence[PositionScore]) -> list[dict[str, float | str | None]]:
    """Return the rows of fractional_positions_summary.csv, one per category and set ("all", "train", "val").

    Drops are the mean at the centers minus that of the category: positive means worse than at the centers.
    """
    rows = []
    for name in ("all", "train", "val"):
        # "all" includes unused frames, if positions were scored on them.
        members = [score for score in scores if name in ("all", score.split)]
        reference = {
            m: _mean([getattr(s, m) for s in members if s.category == "trained_center"]) for m in ("psnr", "ssim")
        }
        rows += [
            _category_row(name, category, [score for score in members if score.category == category], reference)
            for category in _CATEGORIES
            if any(score.category == category for score in members)
        ]
    return rows


def write_patch_study(folder: Path, scores: Sequence[PatchScore]) -> dict[str, float | None]:
    """Write all_patches_detailed.csv, per_frame_stats.csv and summary_stats.csv; return the summary."""
    row = summary(scores)
    write_csv(output_path(folder, "all_patches_detailed.csv"), [asdict(score) for score in scores])
    write_csv(output_path(folder, "per_frame_stats.csv"), frame_statistics(scores))
    write_csv(output_path(folder, "summary_stats.csv"), [row])
    return row


def write_position_study(folder: Path, scores: Sequence[PositionScore]) -> list[dict[str, float | str | None]]:
    """Write fractional_positions_detailed.csv and fractional_positions_summary.csv; return the summary."""
    rows = category_summary(scores)
    write_csv(output_path(folder, "fractional_positions_detailed.csv"), [asdict(score) for score in scores])
    write_csv(output_path(folder, "fractional_positions_summary.csv"), rows)
    return rows


def write_csv(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with equal columns atomically; None becomes an empty cell.

    Raises:
        ValueError: there are no rows.
    """
    if not rows:
        raise ValueError(f"no rows for {path.name}: no frame was scored, check that the split has train frames")
    # No newline translation: the writer sets the line ending itself.
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue().encode(), durable=True)


_CATEGORIES: tuple[Category, ...] = ("trained_center", "untrained_middle_h", "untrained_middle_v", "untrained_corner")


def _category_row(
    name: str, category: Category, members: Sequence[PositionScore], centers: Mapping[str, float | None]
) -> dict[str, float | str | None]:
    row: dict[str, float | str | None] = {"split": name, "category": category}
    means = {measure: statistics.fmean(getattr(member, measure) for member in members) for measure in centers}
    for measure, mean in means.items():
        row |= {f"{measure.upper()}_mean": mean, f"{measure.upper()}_std": _std([getattr(m, measure) for m in members])}
    row["count"] = len(members)
    for measure, mean in means.items():
        reference = centers[measure]
        row[f"{measure.upper()}_drop"] = None if reference is None else reference - mean
    return row | {"PSNR_pooled": pooled_psnr(member.psnr for member in members)}


def _similarity(
    subject: StudiedModel, index: int, embedding: Float[Tensor, "patches dim"] | None
) -> list[float] | list[None]:
    if subject.targets is None or embedding is None:
        return [None] * (subject.geometry.rows * subject.geometry.columns)
    return functional.cosine_similarity(embedding, subject.targets[index].to(embedding.device), dim=-1).tolist()


def _centers(window_positions: Sequence[Position]) -> tuple[list[float], list[float]]:
    return [position.norm_x for position in window_positions], [position.norm_y for position in window_positions]


def _values(scores: Iterable[PatchScore], measure: str) -> list[float]:
    return [value for score in scores if (value := getattr(score, measure)) is not None]


def _mean(values: Sequence[float]) -> float | None:
    return statistics.fmean(values) if values else None


def _std(values: Sequence[float]) -> float | None:
    # The sample standard deviation is undefined for a single value.
    return statistics.stdev(values) if len(values) > 1 else None
