"""All tags that a video run records in addition to the toolkit's: the 47 of the dual-head HNeRV code, and others."""

from collections.abc import Iterator

from fieldwatch import Catalogue, Metric
from fieldwatch.pipeline import Better

_SETS = {"train": "training", "val": "held-out"}


# The tags of the original code are recorded over epochs, the toolkit's over steps.
def _epoch(name: str, unit: str, meaning: str, better: Better, expected: str) -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected, axis="epoch")


TRAIN = (
    _epoch(
        "Train/PSNR",
        "dB",
        "Mean PSNR of the epoch's training patches, each measured at its own step.",
        "higher",
        "rises; lags behind the evaluation, because the weights change during the epoch",
    ),
    _epoch(
        "Train/learning_rate",
        "",
        "Learning rate of the epoch's last step.",
        "none",
        "follows the schedule: warm-up, then decay",
    ),
    _epoch("Train/Loss/pixel_loss", "", "Mean unweighted pixel loss over the epoch's steps.", "lower", "falls"),
    _epoch(
        "Train/Loss/clip_loss",
        "",
        "Mean of 1 - cosine to the teacher's embedding over the epoch's steps; 0 while the term is inactive.",
        "lower",
        "0 in the warm-up, then falls",
    ),
    _epoch(
        "Train/Loss/total_loss", "", "Mean of the weighted sum of all terms over the epoch's steps.", "lower", "falls"
    ),
    _epoch(
        "Train/Loss/clip_loss_weighted",
        "",
        "Semantic loss times its weight: its contribution to the total loss.",
        "lower",
        "0 in the warm-up",
    ),
    _epoch(
        "Train/Loss/pixel_to_clip_ratio",
        "",
        "Ratio of the epoch means of pixel loss and semantic loss; absent while the semantic term is inactive.",
        "none",
        "balance of the two unweighted terms",
    ),
    _epoch(
        "Train/clip_loss_active",
        "",
        "1 in epochs in which the semantic term is active, else 0.",
        "none",
        "0 during the warm-up, then 1",
    ),
    _epoch(
        "Train/Gradients/total_norm",
        "",
        "Epoch mean of the L2 norm of all gradients, before clipping.",
        "steady",
        "0.1 to 10; vanishing below 0.001, exploding above 100",
    ),
    _epoch(
        "Train/Gradients/rgb_head_norm",
        "",
        "Epoch mean of the gradient norm of the RGB head.",
        "steady",
        "shrinks toward convergence",
    ),
    _epoch(
        "Train/Gradients/clip_head_norm",
        "",
        "Epoch mean of the gradient norm of the semantic head.",
        "steady",
        "0 in the warm-up, then settles",
    ),
    _epoch(
        "Train/Gradients/decoder_norm",
        "",
        "Epoch mean of the gradient norm of the decoder that both heads share.",
        "steady",
        "keeps its order of magnitude",
    ),
    _epoch(
        "Train/Gradients/rgb_to_clip_ratio",
        "",
        "Ratio of the epoch means of RGB and semantic head gradient norms; absent in the warm-up.",
        "none",
        "0.1 to 10; outside this range only one head learns",
    ),
)

BATCH = (
    Metric(
        name="Train_Batch/PSNR",
        unit="dB",
        meaning="Mean PSNR of this step's patches.",
        better="higher",
        expected="noisy, rising",
    ),
    Metric(
        name="Train_Batch/pixel_loss",
        unit="",
        meaning="Unweighted pixel loss of this step.",
        better="lower",
        expected="noisy, falling",
    ),
    Metric(
        name="Train_Batch/clip_loss",
        unit="",
        meaning="1 - cosine to the teacher's embedding at this step; 0 while the term is inactive.",
        better="lower",
        expected="0 in the warm-up, then noisy",
    ),
    Metric(
        name="Train_Batch/total_loss",
        unit="",
        meaning="Weighted sum of all terms at this step.",
        better="lower",
        expected="falls",
    ),
)

PARAMETERS = tuple(
    _epoch(
        f"Model/Params/{head}_{statistic}",
        "",
        f"{label} of all weights and biases of the {name} head, every tenth epoch.",
        "steady",
        "changes slowly; a drift or a jump means that the head saturates",
    )
    for head, name in (("rgb_head", "RGB"), ("clip_head", "semantic"))
    for statistic, label in (("mean", "Mean"), ("std", "Sample standard deviation"))
)


def _frame_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        is_train = name == "train"
        yield _epoch(
            f"Eval/Frame/{name}_psnr",
            "dB",
            f"Mean patch PSNR per frame, averaged over {subset} frames.",
            "higher",
            "rises, and stays high" if is_train else "rises, below the training frames",
        )
        yield _epoch(
            f"Eval/Frame/{name}_clip_sim",
            "",
            f"Mean cosine similarity of predicted and teacher embeddings over the patches of {subset} frames.",
            "higher",
            "toward 1 after the warm-up; compare it with Eval/Baseline"
            if is_train
            else "above 0.85 is healthy, below 0.7 poor; compare it with Eval/Baseline, which may itself be that high",
        )
        yield _epoch(f"Eval/Frame/{name}_clip_dist", "", f"1 - Eval/Frame/{name}_clip_sim.", "lower", "toward 0")


def _statistics_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        tag = f"Eval/PSNR_Stats/{name}"
        spread = f"Population standard deviation of frame PSNR over {subset} frames."
        yield _epoch(f"{tag}_std", "dB", spread, "lower", "small: all frames have similar quality")
        worst = f"Lowest frame PSNR among {subset} frames."
        best = f"Highest frame PSNR among {subset} frames."
        yield _epoch(f"{tag}_min", "dB", worst, "higher", "rises; inspect this frame first")
        yield _epoch(f"{tag}_max", "dB", best, "higher", "rises; the best case")
    for name, subset in _SETS.items():
        suffix = f"over all patches of {subset} frames."
        psnr = f"Population standard deviation of PSNR {suffix}"
        yield _epoch(f"Eval/Patch/{name}_psnr_std", "dB", psnr, "lower", "small: even image quality")
        cosine = f"Population standard deviation of cosine similarity {suffix}"
        yield _epoch(f"Eval/Patch/{name}_clip_sim_std", "", cosine, "lower", "small: even semantic quality")


def _gap_tags() -> Iterator[Metric]:
    yield _epoch(
        "Eval/Gap/psnr_gap",
        "dB",
        "Frame PSNR of training frames minus that of held-out frames; absent if no frames are held out.",
        "lower",
        "below 3 dB the network generalizes, above 5 dB it memorizes",
    )
    yield _epoch(
        "Eval/Gap/clip_sim_gap",
        "",
        "Cosine similarity of training frames minus that of held-out frames; absent if no frames are held out.",
        "lower",
        "near 0",
    )


def _histogram_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        for kind, unit, quantity in (("psnr", "dB", "PSNR"), ("clip_sim", "", "cosine similarity")):
            yield Metric(
                name=f"Eval/Histogram/{name}_{kind}_distribution",
                unit=unit,
                meaning=f"Distribution of frame {quantity} over {subset} frames; absent for an empty set.",
                better="higher",
                axis="epoch",
                kind="histogram",
                expected="a single narrow peak that moves to the right",
            )


def _count_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        for unit in ("frames", "patches"):
            meaning = f"Number of evaluated {subset} {unit}."
            yield _epoch(f"Eval/Info/num_{name}_{unit}", "", meaning, "none", "constant")


EVALUATION = (*_frame_tags(), *_statistics_tags(), *_gap_tags(), *_histogram_tags(), *_count_tags())

# Dashboards that were built for the original code find all of its tags here.
DUAL_HEAD_METRICS = (*TRAIN, *BATCH, *PARAMETERS, *EVALUATION)
"""The 47 tags of the dual-head HNeRV code, grouped by kind."""


def _further_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        yield _epoch(
            f"Eval/Pooled/{name}_psnr",
            "dB",
            f"Mean over {subset} frames of the PSNR computed from the whole frame's MSE, as papers report it.",
            "higher",
            "at most the Eval/Frame value; compare it with Reference/",
        )
        for tag, measure in (("SSIM", "SSIM"), ("MS_SSIM", "MS-SSIM")):
            meaning = f"Mean whole-frame {measure} of {subset} frames."
            yield _epoch(f"Eval/{tag}/{name}", "", meaning, "higher", "toward 1")
        tag = f"Eval/CLIP_Stats/{name}"
        spread = f"Population standard deviation of frame cosine similarity over {subset} frames."
        yield _epoch(f"{tag}_std", "", spread, "lower", "small: all frames have similar semantic quality")
        worst = f"Lowest frame cosine similarity among {subset} frames."
        yield _epoch(f"{tag}_min", "", worst, "higher", "rises; inspect this frame first")
        best = f"Highest frame cosine similarity among {subset} frames."
        yield _epoch(f"{tag}_max", "", best, "higher", "rises; the best case")
        for kind, meaning in (
            ("mean", f"Cosine similarity of {subset} patches to the mean training embedding."),
            ("shuffled", f"Cosine similarity of teacher embeddings of different {subset} patches."),
        ):
            yield _epoch(
                f"Eval/Baseline/{name}_clip_sim_{kind}",
                "",
                meaning,
                "none",
                "the Eval/Frame similarity is meaningful only above this value",
            )


def _reference_tags() -> Iterator[Metric]:
    for name, subset in _SETS.items():
        for kind, meaning in (
            ("neighbor_average", "the mean of the nearest training frames before and after"),
            ("copy_previous", "the nearest training frame before"),
            ("mean_frame", "the mean of all training frames"),
        ):
            yield _epoch(
                f"Reference/{name}_{kind}",
                "dB",
                f"Pooled PSNR of {subset} frames predicted as {meaning}, without a network.",
                "none",
                "Eval/Pooled should exceed it",
            )


PICTURES = tuple(
    Metric(
        name=f"Eval/Worst/{name}_{what}",
        unit="",
        meaning=f"Ground truth, prediction and error of the {subset} {meaning}.",
        axis="epoch",
        kind="image",
        expected="the error panel becomes dark",
    )
    for name, subset in _SETS.items()
    for what, meaning in (("frame", "frame with the lowest PSNR"), ("patches", "frame's worst patches"))
)
FURTHER_METRICS = (*_further_tags(), *_reference_tags(), *PICTURES)
"""Tags that the dual-head HNeRV code does not record."""

VIDEO_METRICS = Catalogue((*DUAL_HEAD_METRICS, *FURTHER_METRICS))
"""All tags of a video run."""
