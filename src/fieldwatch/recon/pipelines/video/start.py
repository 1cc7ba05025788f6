"""Start of a video run: prepares the scene, and opens the run with its metrics, rules and checkpoint policy."""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import (
    TOOLKIT,
    Declared,
    Guard,
    InputError,
    Outputs,
    Phase,
    Ranks,
    Retention,
    Rollback,
    Run,
    Saving,
    Window,
)
from fieldwatch.pipeline import RunChoices, choose_device, run_options
from fieldwatch.recon.data import Clip, PatchGrid, read_clip, synthetic_clip
from fieldwatch.recon.losses import pixel_loss
from fieldwatch.recon.pipelines.video.baselines import embedding_baselines, reference_psnr
from fieldwatch.recon.pipelines.video.between import interpolated_targets
from fieldwatch.recon.pipelines.video.config import BetweenMotion, VideoConfig
from fieldwatch.recon.pipelines.video.graphs import refuse_graphs
from fieldwatch.recon.pipelines.video.layout import VIDEO_LAYOUT
from fieldwatch.recon.pipelines.video.objective import semantic_window
from fieldwatch.recon.pipelines.video.rules import VIDEO_RULES
from fieldwatch.recon.pipelines.video.scene import StandIns, VideoScene
from fieldwatch.recon.pipelines.video.schedule import parse_schedule
from fieldwatch.recon.pipelines.video.split import FrameSplit, split_frames
from fieldwatch.recon.pipelines.video.strips import as_bytes
from fieldwatch.recon.pipelines.video.tags import VIDEO_METRICS
from fieldwatch.recon.pipelines.video.teacher import Teacher, find_teacher, targets

ROLLBACK = Rollback()
"""Rollback settings; healthy runs of the presets stay far from its limits."""


def cache_folder(config: VideoConfig) -> Path:
    """Return the folder in which the teacher's embeddings are cached between runs."""
    # The XDG base directory specification defines this variable and its default.
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return config.cache or Path(home) / "fieldwatch" / "targets"


def load_clip(config: VideoConfig) -> Clip:
    """Load the configured clip, or the built-in one.

    Raises:
        ClipError: the clip cannot be read; the message names the frame and the remedy.
    """
    if config.data is None:
        _refuse_framing(config)
        return synthetic_clip(frames=32)
    return read_clip(
        config.data,
        crop=config.crop,
        resize=config.resize,
        start=config.start,
        count=config.count,
        stride=config.stride,
    )


def _refuse_framing(config: VideoConfig) -> None:
    # Compared with the defaults, because the config does not record which flags were given.
    plain = VideoConfig()
    for name in ("crop", "resize", "start", "count", "stride"):
        if getattr(config, name) != getattr(plain, name):
            raise InputError(
                f"--{name} {getattr(config, name)} applies to --data only: give --data too, or leave --{name} out"
            )


def _refuse_idle_motion(config: VideoConfig) -> None:
    if config.between_motion != "straight" and not config.between_weight:
        raise InputError(
            f"--between-motion {config.between_motion} needs the interpolation prior, which --between-weight 0 leaves "
            "out: give a weight, e.g. --between-weight 1, or leave --between-motion out"
        )


def semantic_notes(config: VideoConfig) -> list[str]:
    """Return a note if the run ends before the semantic term starts."""
    if config.clip_loss_weight == 0 or config.pixel_loss_warmup_epochs < config.epochs:
        return []
    note = (
        f"the semantic head is not trained: its term starts after {config.pixel_loss_warmup_epochs} epochs "
        f"(--pixel-loss-warmup-epochs), and the run has {config.epochs} (--epochs)"
    )
    return [note]


def prepare_scene(config: VideoConfig) -> VideoScene:
    """Read the clip, check all inputs, split the frames, and compute the semantic targets.

    Raises:
        ClipError, ValueError: the input is invalid; the message says what was expected, what was found, and what to do.
    """
    # Only for validation, before the clip is read.
    parse_schedule(config.lr_type)
    pixel_loss(config.loss)
    Ranks.of_process().refuse_small(config.batch, "--batch")
    device = choose_device(config.device)
    refuse_graphs(config, device, Ranks.of_process().world)
    _refuse_idle_motion(config)
    clip = load_clip(config)
    grid = PatchGrid(config.rows, config.columns, clip.height, clip.width)
    split = split_frames(len(clip), config.data_split, shuffle=config.shuffle_data)
    teacher, reason = find_teacher(config.teacher, device)
    if teacher.dim != config.options.clip_dim:
        raise InputError(
            f"--clip-dim must be {teacher.dim}, the length of the vectors of teacher {teacher.name}, got "
            f"{config.options.clip_dim}"
        )
    embeddings = targets(clip, grid, teacher, cache_folder(config))
    pictures = (
        make_stand_ins(clip, split, grid, teacher, device, motion=config.between_motion)
        if config.between_weight
        else None
    )
    return VideoScene(
        clip=clip,
        grid=grid,
        split=split,
        targets=embeddings.to(device),
        teacher=teacher.name,
        teacher_note=reason,
        notes=(*clip.notes, *split.notes, *semantic_notes(config)),
        device=device,
        # A clip that streams is too large for memory.
        resident=None if clip.streams else clip.frames.to(device),
        stand_ins=pictures,
        references=reference_psnr(clip, split.train, split.val)
        | embedding_baselines(embeddings, split.train, split.val),
    )


def make_stand_ins(  # noqa: PLR0913  a clip, what is known about it, and how to interpolate
    clip: Clip,
    split: FrameSplit,
    grid: PatchGrid,
    teacher: Teacher,
    device: torch.device,
    *,
    motion: BetweenMotion = "straight",
) -> StandIns | None:
    """Interpolate the frames that are not trained on from those that are; None if there are none."""
    filled = interpolated_targets(_Floats(clip), split.train, motion=motion)
    if not filled.indices:
        return None
    # Rounded to 8 bits like true frames, so that the teacher treats both alike.
    pictures = torch.stack([as_bytes(picture) for picture in filled.frames])
    targets = teacher.encode_images(grid.split(pictures)).reshape(len(pictures), grid.patches, -1)
    row_of = {gap: i for i, gap in enumerate(filled.indices)}
    return StandIns(row_of=row_of, frames=pictures.to(device), targets=targets.to(device))


@dataclass(frozen=True)
class _Floats:
    """Frames of a clip in [0, 1], decoded on demand."""

    clip: Clip

    def __len__(self) -> int:
        return len(self.clip)

    def __getitem__(self, index: int, /) -> Float[Tensor, "3 height width"]:
        return self.clip[index].float() / 255


def term_windows(scene: VideoScene, semantic: Window | None) -> dict[str, Window]:
    """Return the window of steps in which each loss term is active."""
    # Window(0) starts at the first step and has no end.
    always = {"pixel": Window(0)} | ({"between": Window(0)} if scene.stand_ins else {})
    return always | ({"clip": semantic} if semantic else {})


def start_run(config: VideoConfig, scene: VideoScene, folder: Path, epoch_steps: int, **how: Unpack[RunChoices]) -> Run:
    """Open the run with its metrics, rules, windows, phases and checkpoint policy."""
    semantic = semantic_window(config, epoch_steps)
    # No warm-up phase if the semantic term is active from the first step.
    warm_up = [Phase("pixel warm-up", Window(0, semantic.first - 1))] if semantic and semantic.first else []
    options = run_options(
        how,
        saving=Saving(
            every=config.checkpoint_epochs * epoch_steps,
            keep=Retention(last=config.keep_last, every=config.keep_every, best=config.keep_best, metric="psnr"),
        ),
        guard=Guard(rollback=ROLLBACK),
        declared=Declared(
            windows=term_windows(scene, semantic),
            phases=[*warm_up, Phase("both heads", semantic)] if semantic else [],
            metrics=TOOLKIT + VIDEO_METRICS,
            layout=VIDEO_LAYOUT,
            about={
                "pipeline": "video",
                "clip": config.name,
                "frames": len(scene.clip),
                "size": [scene.clip.height, scene.clip.width],
                "split": {"train": scene.split.train, "val": scene.split.val, "unused": scene.split.unused},
                "teacher": scene.teacher,
                "teacher_note": scene.teacher_note,
                "notes": list(scene.notes),
            },
        ),
        outputs=Outputs(rules=VIDEO_RULES),
    )
    return Run(folder, config=config, **options)
