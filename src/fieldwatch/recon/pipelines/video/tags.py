"""Every tag a video run records beyond the toolkit's: the 47 of the dual-head HNeRV code, and ours."""

from collections.abc import Iterator

from fieldwatch import Catalogue, Metric
from fieldwatch.pipeline import Better

_SETS = {"train": "training", "val": "held-out"}


def _epoch(name: str, unit: str, meaning: str, better: Better, expected: str) -> Metric:
    return Metric(name=name, unit=unit, meaning=meaning, better=better, expected=expected, axis="epoch")


TRAIN = (
    _epoch(
        "Train/PSNR",
        "dB",
        "Mean PSNR of the training patches of the epoch, each at the moment of its own step.",
        "higher",
        "rises; it trails the evaluation, because the weights move during the epoch",
    ),
    _epoch(
        "Train/learning_rate",
        "",
        "Learning rate of the epoch's last step.",
        "none",
        "follows the schedule: warm-up, then decay",
    ),
    _epoch("Train/Loss/pixel_loss", "", "Mean pixel loss over the epoch's steps, before its weight.", "lower", "falls"),
    _epoch(
        "Train/Loss/clip_loss",
        "",
        "Mean of 1 - cosine to the teacher's embedding over the epoch's steps; 0 while the term waits.",
        "lower",
        "0 in the warm-up, then falls",
    ),
    _epoch(
        "Train/Loss/total_loss", "", "Mean of the weighted sum of all terms over the epoch's steps.", "lower", "falls"
    ),
    _epoch(
        "Train/Loss/clip_loss_weighted",
        "",
        "The semantic loss times its weight: what it really adds to the total.",
        "lower",
        "0 in the warm-up",
    ),
    _epoch(
        "Train/Loss/pixel_to_clip_ratio",
        "",
        "Epoch means: pixel loss divided by semantic loss; absent while the semantic term is off.",
        "none",
        "how the two terms are balanced, before weights",
    ),
    _epoch(
        "Train/clip_loss_active",
        "",
        "1 in epochs in which the semantic term trains, else 0.",
        "none",
        "0 for the warm-up's epochs, then 1",
    ),
    _epoch(
        "Train/Gradients/total_norm",
        "",
        "Epoch mean of the L2 norm of all gradients, before clipping.",
        "steady",
        "0.1 to 10; below 0.001 it vanishes, above 100 it explodes",
    ),
    _epoch(
        "Train/Gradients/rgb_head_norm",
        "",
        "Epoch mean of the gradient norm of the colour head.",
        "steady",
        "shrinks towards convergence",
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
        "Epoch mean of the gradient norm of all that both heads share.",
        "steady",
        "stays of one order",
    ),
    _epoch(
        "Train/Gradients/rgb_to_clip_ratio",
        "",
        "Epoch means: gradient norm of the colour head divided by that of the semantic head; absent in the warm-up.",
        "none",
        "0.1 to 10; outside, one head learns alone",
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
        meaning="Pixel loss of this step, before its weight.",
        better="lower",
        expected="noisy, falling",
    ),
    Metric(
        name="Train_Batch/clip_loss",
        unit="",
        meaning="1 - cosine to the teacher's embedding at this step; 0 while the term waits.",
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
        f"{words} of all weights and biases of the {name} head, every tenth epoch.",
        "steady",
        "moves slowly; a drift or a jump says that the head saturates",
    )
    for head, name in (("rgb_head", "colour"), ("clip_head", "semantic"))
    for statistic, words in (("mean", "Mean"), ("std", "Sample standard deviation"))
)


def _frame_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        seen = name == "train"
        yield _epoch(
            f"Eval/Frame/{name}_psnr",
            "dB",
            f"Mean over {words} frames of the mean over patches of PSNR.",
            "higher",
            "rises, and stays high" if seen else "rises, below the training frames",
        )
        yield _epoch(
            f"Eval/Frame/{name}_clip_sim",
            "",
            f"Mean cosine between predicted and teacher's embedding over the patches of {words} frames.",
            "higher",
            "towards 1 after the warm-up; read it beside Eval/Baseline"
            if seen
            else "above 0.85 is healthy, below 0.7 poor; read it beside Eval/Baseline, which may itself be that high",
        )
        yield _epoch(f"Eval/Frame/{name}_clip_dist", "", f"1 - Eval/Frame/{name}_clip_sim.", "lower", "towards 0")


def _statistics_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        tag = f"Eval/PSNR_Stats/{name}"
        spread = f"Population standard deviation of frame PSNR over {words} frames."
        yield _epoch(f"{tag}_std", "dB", spread, "lower", "small: all frames are drawn alike")
        worst = f"Frame PSNR of the worst of the {words} frames."
        best = f"Frame PSNR of the best of the {words} frames."
        yield _epoch(f"{tag}_min", "dB", worst, "higher", "rises; the frame to look at first")
        yield _epoch(f"{tag}_max", "dB", best, "higher", "how good it gets")
    for name, words in _SETS.items():
        meaning = f"Population standard deviation over all patches of {words} frames of"
        yield _epoch(f"Eval/Patch/{name}_psnr_std", "dB", f"{meaning} PSNR.", "lower", "how uneven the picture is")
        yield _epoch(f"Eval/Patch/{name}_clip_sim_std", "", f"{meaning} the cosine.", "lower", "small: even semantics")


def _gap_tags() -> Iterator[Metric]:
    yield _epoch(
        "Eval/Gap/psnr_gap",
        "dB",
        "Frame PSNR of training minus held-out frames; absent when nothing is held out.",
        "lower",
        "below 3 dB generalises, above 5 dB memorises",
    )
    yield _epoch(
        "Eval/Gap/clip_sim_gap",
        "",
        "Cosine of training minus held-out frames; absent when nothing is held out.",
        "lower",
        "near 0",
    )


def _histogram_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        for kind, unit, what in (("psnr", "dB", "PSNR"), ("clip_sim", "", "cosine")):
            yield Metric(
                name=f"Eval/Histogram/{name}_{kind}_distribution",
                unit=unit,
                meaning=f"Distribution of frame {what} over {words} frames; absent for an empty set.",
                better="higher",
                axis="epoch",
                kind="histogram",
                expected="one narrow hump that moves to the right",
            )


def _count_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        for unit in ("frames", "patches"):
            meaning = f"Number of {words} {unit} that were evaluated."
            yield _epoch(f"Eval/Info/num_{name}_{unit}", "", meaning, "none", "constant")


EVALUATION = (*_frame_tags(), *_statistics_tags(), *_gap_tags(), *_histogram_tags(), *_count_tags())

DUAL_HEAD_METRICS = (*TRAIN, *BATCH, *PARAMETERS, *EVALUATION)
"""The tags of the dual-head HNeRV code, all 47, by kind."""


def _further_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        yield _epoch(
            f"Eval/Pooled/{name}_psnr",
            "dB",
            f"Mean over {words} frames of the PSNR of the whole frame's mean squared error, as papers report it.",
            "higher",
            "at most Eval/Frame's value; compare it with Reference/",
        )
        for tag, what in (("SSIM", "SSIM"), ("MS_SSIM", "MS-SSIM")):
            yield _epoch(f"Eval/{tag}/{name}", "", f"Mean {what} over whole {words} frames.", "higher", "towards 1")
        for kind, meaning in (
            ("mean", f"Cosine that the mean training embedding alone reaches on {words} patches."),
            ("shuffled", f"Cosine between the teacher's embeddings of different {words} patches."),
        ):
            yield _epoch(
                f"Eval/Baseline/{name}_clip_sim_{kind}",
                "",
                meaning,
                "none",
                "what Eval/Frame's cosine has to beat before it means anything",
            )


def _reference_tags() -> Iterator[Metric]:
    for name, words in _SETS.items():
        for kind, meaning in (
            ("neighbour_average", "the mean of the nearest training frames before and after"),
            ("copy_previous", "the nearest training frame before"),
            ("mean_frame", "the mean of all training frames"),
        ):
            yield _epoch(
                f"Reference/{name}_{kind}",
                "dB",
                f"Pooled PSNR of {words} frames predicted as {meaning}: no network at all.",
                "none",
                "what Eval/Pooled has to beat",
            )


PICTURES = tuple(
    Metric(
        name=f"Eval/Worst/{name}_{what}",
        unit="",
        meaning=f"Truth, prediction and error of the {words} {meaning}.",
        axis="epoch",
        kind="image",
        expected="the error panel turns dark",
    )
    for name, words in _SETS.items()
    for what, meaning in (("frame", "frame with the lowest PSNR"), ("patches", "frame's worst patches"))
)
FURTHER_METRICS = (*_further_tags(), *_reference_tags(), *PICTURES)
"""What the dual-head HNeRV code does not record."""

VIDEO_METRICS = Catalogue((*DUAL_HEAD_METRICS, *FURTHER_METRICS))
"""Every tag of a video run."""
