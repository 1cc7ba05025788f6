"""Results of a trained video run: evaluation files, and a bitstream that is decoded and measured."""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import orjson
import torch
from jaxtyping import Float
from torch import Tensor

from fieldwatch import InputError
from fieldwatch.files import output_path, write_file
from fieldwatch.recon.geometry import evenly_spaced
from fieldwatch.recon.pipelines.video.bitstream import (
    CodecOptions,
    WrittenBitstream,
    allocate_bits,
    frame_codes,
    model_config,
    write_bitstream,
)
from fieldwatch.recon.pipelines.video.bitstream.codec import CLIP_HEAD, ENCODER
from fieldwatch.recon.pipelines.video.embeddings import draw_map, fit_map, map_notes, verify_embeddings
from fieldwatch.recon.pipelines.video.evaluation import VideoEvaluation, evaluate, render_frame
from fieldwatch.recon.pipelines.video.models import VideoModel
from fieldwatch.recon.pipelines.video.objective import squared_error
from fieldwatch.recon.pipelines.video.playback import Playback, origin_config, save_picture
from fieldwatch.recon.pipelines.video.shrinking import refuse_shrinking, shrink
from fieldwatch.recon.pipelines.video.stored import StoredVideoRun
from fieldwatch.recon.pipelines.video.strips import sheet, strip, worst
from fieldwatch.recon.pipelines.video.study import (
    StudiedModel,
    score_patches,
    score_positions,
    write_patch_study,
    write_position_study,
)

WORST_FRAMES = 4
"""Number of frames of each set in the image of the worst frames."""
DECODES = 3
"""Number of decodes of the whole clip, whose median gives the decoding speed."""
ALLOCATION_FRAMES = 8
"""Number of training frames whose error decides the bit allocation."""
SHRINKING_DROP = 0.5
"""How much PSNR a network that is trained on for a smaller file may lose, dB, unless told otherwise."""
ATTEMPTS = 3
"""Maximum number of bit allocations, each with half the budget of the previous one, until the measured drop is met."""

PATCH_FILES = ("all_patches_detailed.csv", "per_frame_stats.csv", "summary_stats.csv")
POSITION_FILES = ("fractional_positions_detailed.csv", "fractional_positions_summary.csv")
EMBEDDING_FILES = ("embedding_report.json", "embedding_map.png")

Progress = Callable[[], None]


def no_progress() -> None:
    """Ignore progress."""


@dataclass(frozen=True, kw_only=True)
class EvaluationFiles:
    """Results and files of an evaluation.

    Attributes:
        metrics: all evaluation tags that apply, with references and baselines.
        report: report on the semantic head; None if it is untrained.
        positions: quality at and between the trained patches, per category and set.
        files: all files by kind.
    """

    metrics: Mapping[str, float]
    report: Mapping[str, Any] | None
    positions: Sequence[Mapping[str, float | str | None]]
    files: Mapping[str, Path]


def frames_to_render(run: StoredVideoRun, positions_frames: int) -> int:
    """Return how many frames `write_evaluation` renders, for a progress bar, not counting repeats of worst frames."""
    scored = len(run.scene.split.train) + len(run.scene.split.val)
    # Once each for the metrics and the patch study, the position frames, and all frames for their embeddings.
    return 2 * scored + min(positions_frames, scored) + len(run.scene.clip) * Playback.of_run(run).origin.embeds


def write_evaluation(
    run: StoredVideoRun, folder: Path, *, positions_frames: int = 10, on_frame: Progress = no_progress
) -> EvaluationFiles:
    """Score a checkpoint on every training and held-out frame, and write tables, images and metrics.json.

    Args:
        run: opened run.
        folder: output folder, created if missing.
        positions_frames: number of evenly spaced frames at which positions between patches are scored too; 0 for none.
        on_frame: called after every rendered frame.
    """
    player = Playback.of_run(run)
    scene = run.scene
    embeds = player.origin.embeds
    subject = _subject(run, embed=embeds)
    frames = evenly_spaced(sorted([*scene.split.train, *scene.split.val]), positions_frames)
    # The worst frames are rendered outside: there are few of them.
    with _with_progress(run.model, on_frame):
        evaluation = evaluate(run.model, scene, embed=embeds)
        write_patch_study(folder, score_patches(subject))
        positions = write_position_study(folder, score_positions(subject, frames)) if frames else []
        report = _write_embeddings(player, folder) if embeds else None
    # Only the files that are actually written.
    names = ["metrics.json", *PATCH_FILES, *(POSITION_FILES if frames else ()), *(EMBEDDING_FILES if embeds else ())]
    names += _write_worst(run, evaluation, folder)
    metrics = evaluation.metrics | dict(scene.references)
    about = {"run": str(run.folder), "step": run.step, "teacher": scene.teacher}
    _write_json(output_path(folder, "metrics.json"), about | {"metrics": metrics, "positions": positions})
    files = {name.partition(".")[0]: output_path(folder, name) for name in names}
    return EvaluationFiles(metrics=metrics, report=report, positions=positions, files=files)


@dataclass(frozen=True, kw_only=True)
class ExportedBitstream:
    """A bitstream and its measurements after decoding.

    Attributes:
        written: the file.
        options: bits per symbol.
        plain_bytes: size of the network's weights in the checkpoint.
        before: metrics of the checkpoint.
        after: metrics of the file, decoded from disk.
        frames_per_second: median decoding speed of the whole clip, frame by frame.
        loading_seconds: time to read, decode and build the network.
        allowed_drop: how much pooled PSNR (dB) the training frames were allowed to lose; None for any.
    """

    written: WrittenBitstream
    options: CodecOptions
    plain_bytes: int
    before: Mapping[str, float]
    after: Mapping[str, float]
    frames_per_second: float
    loading_seconds: float
    allowed_drop: float | None = None

    @property
    def drop(self) -> float:
        """Loss of pooled PSNR (dB) on the training frames."""
        return self.before["Eval/Pooled/train_psnr"] - self.after["Eval/Pooled/train_psnr"]


def export_bitstream(  # noqa: PLR0913  a run and a file; the rest are options with defaults
    run: StoredVideoRun,
    path: Path,
    options: CodecOptions,
    *,
    psnr_drop: float | None = None,
    shrink_epochs: int = 0,
    stage: Callable[[str], None] = lambda _: None,
) -> ExportedBitstream:
    """Write a run's network as a bitstream, decode it from disk, and measure both.

    An untrained semantic head is always omitted.

    Args:
        run: opened run.
        path: path of the file; replaced if it exists.
        options: bits per symbol, and whether the semantic head is stored.
        psnr_drop: maximum loss in dB (pooled, training frames) due to quantization; tensors then get between 2 and
            `options.bits` bits, fewer where it shows least. None gives every tensor `options.bits`.
        shrink_epochs: number of passes over the training frames to train on for a smaller file, see
            :func:`~fieldwatch.recon.pipelines.video.shrinking.shrink`; ``psnr_drop`` is then 0.5 unless given. The run
            keeps its weights.
        stage: called with a description of each stage.

    Raises:
        InputError: a weight is not finite, psnr_drop is not a finite number greater than 0, or the network cannot be
            shrunk.
    """
    if psnr_drop is not None and not 0 < psnr_drop < math.inf:
        raise InputError(f"the PSNR drop must be a finite number of dB greater than 0, e.g. 0.1, got {psnr_drop}")
    embeds = options.with_clip_head and Playback.of_run(run).origin.embeds
    # An untrained head would only take up space.
    options = replace(options, with_clip_head=embeds)
    if shrink_epochs < 0:
        raise InputError(f"--shrink-epochs must be at least 0, got {shrink_epochs}")
    if shrink_epochs:
        refuse_shrinking(run, with_clip_head=embeds)
        psnr_drop = SHRINKING_DROP if psnr_drop is None else psnr_drop
    stage("evaluating the checkpoint")
    # With the same head as the file, so that both sets of metrics are comparable.
    before = evaluate(run.model, run.scene, embed=embeds).metrics
    if psnr_drop is not None and shrink_epochs:
        shrunk = shrink(run, epochs=shrink_epochs, psnr_drop=psnr_drop, on_epoch=stage)
        stage("writing, decoding and evaluating the file")
        exported = _write_and_measure(run, path, replace(options, steps=shrunk.steps), before, shrunk.state)
        return replace(exported, allowed_drop=psnr_drop)
    attempt = 0
    while True:
        if psnr_drop is not None:
            stage("choosing bits per tensor")
            options = replace(options, by_prefix=_allocate(run, options.bits, psnr_drop, 0.5**attempt))
        stage("writing, decoding and evaluating the file")
        exported = _write_and_measure(run, path, options, before)
        attempt += 1
        # The allocation estimates the drop from single tensors on a few frames, so the actual drop is measured, and
        # the budget halved if it is too large.
        if psnr_drop is None or exported.drop <= psnr_drop or attempt == ATTEMPTS:
            return replace(exported, allowed_drop=psnr_drop)


def decoding_speed(player: Playback, repeats: int = DECODES) -> float:
    """Return the frames per second of rendering the whole clip frame by frame: the median of several repeats."""
    # A warm-up frame, which pays for one-time setup.
    player.frame(0)
    seconds = []
    for _ in range(repeats):
        _wait_for(player.device)
        began = time.perf_counter()
        for index in range(player.geometry.frames):
            player.frame(index)
        _wait_for(player.device)
        seconds.append(time.perf_counter() - began)
    return player.geometry.frames / statistics.median(seconds)


def _subject(run: StoredVideoRun, *, embed: bool) -> StudiedModel:
    scene = run.scene
    return StudiedModel(
        draw=lambda query: run.model(query, embed=embed),
        unit=run.model.unit,
        geometry=scene.geometry,
        frame=lambda index: scene.frames([index])[0],
        splits=scene.split.labels,
        targets=scene.targets if embed else None,
    )


@contextmanager
def _with_progress(model: VideoModel, on_frame: Progress) -> Iterator[None]:
    """Call a function after every forward pass of the network."""
    # A hook counts the frames of all parts of the evaluation without passing a callback through them.
    handle = model.register_forward_hook(lambda *_: on_frame())
    try:
        yield
    finally:
        handle.remove()


def _write_embeddings(player: Playback, folder: Path) -> dict[str, Any]:
    predicted = player.embeddings()
    targets = player.targets
    if targets is None:
        raise InputError("embeddings are evaluated against the teacher's, which a bitstream lacks: open the run")
    splits = player.origin.splits
    report = verify_embeddings(predicted, targets.cpu(), splits) | {"teacher": player.origin.teacher}
    _write_json(output_path(folder, "embedding_report.json"), report)
    draw_map(
        fit_map(predicted, targets.cpu()), splits, output_path(folder, "embedding_map.png"), notes=map_notes(report)
    )
    return report


@torch.no_grad()
def _write_worst(run: StoredVideoRun, evaluation: VideoEvaluation, folder: Path) -> list[str]:
    """Write the worst frames of each set as ground truth, rendering and error; return the names of the files."""
    names = []
    for name, evaluated in evaluation.sets.items():
        rows = []
        for row in worst(evaluated.scores.pooled_psnr, WORST_FRAMES):
            index = evaluated.frames[row]
            prediction = run.scene.grid.join(render_frame(run.model, run.scene, index, embed=False)[0])[0]
            caption = f"{name} frame {run.scene.clip.names[index]}: {evaluated.scores.pooled_psnr[row]:.2f} dB"
            rows.append(strip(run.scene.covered(index), prediction, caption))
        names.append(f"worst_{name}_frames.png")
        save_picture(output_path(folder, names[-1]), sheet(rows))
    return names


def _write_and_measure(
    run: StoredVideoRun,
    path: Path,
    options: CodecOptions,
    before: Mapping[str, float],
    weights: Mapping[str, Tensor] | None = None,
) -> ExportedBitstream:
    # The config and origin make the file self-contained: it is played back without the run.
    config = model_config(run.config.model, run.scene.geometry, run.config.options, **origin_config(run))
    state = run.model.state_dict()
    written = write_bitstream(path, weights or state, config, embeddings=_codes(run), options=options)
    began = time.perf_counter()
    # Read from disk, so that the measured file is the one that was written.
    player = Playback.of_bitstream(path, run.scene.device.type)
    loading = time.perf_counter() - began
    return ExportedBitstream(
        written=written,
        options=options,
        plain_bytes=sum(tensor.nbytes for tensor in state.values()),
        before=before,
        after=evaluate(player.model, run.scene, embed=options.with_clip_head).metrics,
        frames_per_second=decoding_speed(player),
        loading_seconds=loading,
    )


@torch.no_grad()
def _codes(run: StoredVideoRun) -> Float[Tensor, "frames channels rows columns"] | None:
    """Return the code of every frame for networks that encode frames, computed one frame at a time."""
    # One frame at a time, to bound the memory of the encoder.
    codes = [frame_codes(run.model, run.scene.frames([index])) for index in range(len(run.scene.clip))]
    # Either all frames have a code or none, depending on the model.
    present = [code for code in codes if code is not None]
    return torch.cat(present) if present else None


def _allocate(run: StoredVideoRun, most: int, psnr_drop: float, share: float) -> dict[str, int]:
    """Allocate bits per tensor of the pixel path, within a fraction of the squared error that the PSNR drop allows."""
    batches = [
        run.scene.batch(run.model.unit, run.scene.units(run.model.unit, [index]), with_frames=run.model.needs_frames)
        for index in evenly_spaced(sorted(run.scene.split.train), ALLOCATION_FRAMES)
    ]

    def error(weights: Mapping[str, Tensor]) -> float:
        return squared_error(run.model, weights, batches)

    state = {
        # Neither is used for rendering: the file has codes instead of the encoder, and the head does not affect pixels.
        name: tensor
        for name, tensor in run.model.state_dict().items()
        if not name.startswith((ENCODER, CLIP_HEAD))
    }
    # A drop of d dB multiplies the squared error by 10^(d / 10); the increase is the budget.
    budget = error(state) * (10 ** (psnr_drop / 10) - 1) * share
    return allocate_bits(state, error, budget, least=min(2, most), most=most)


def _write_json(path: Path, content: Mapping[str, Any]) -> None:
    write_file(path, orjson.dumps(content, option=orjson.OPT_INDENT_2) + b"\n", durable=True)


def _wait_for(device: torch.device) -> None:
    # CUDA kernels run asynchronously, so a timer has to wait for them.
    if device.type == "cuda":
        torch.cuda.synchronize(device)
