"""Selection of the metrics that describe the quality of a model, by their tags, for any training loop."""

import re
from collections.abc import Iterable
from typing import Final

_SHOWN_ELSEWHERE: Final = re.compile(
    r"(Loss|Gradients|Guard|Forward|Time|Memory|Machine|System|TensorProfiling|Sample|LearningRate|Parameters|Guide)/"
    r"|Train/(Loss|Gradients)/|Model/Params/|Train_Batch/.*loss|Train/(learning_rate|clip_loss_active)"
    r"|Stats/.*_(mean|std)$|Recovery/|.*(iterations_per_sec|eta_minutes)$"
)
"""Tags with a separate section in the view, or that do not describe quality."""
# Patterns in order of importance: a tag has the rank of the first pattern that matches.
_RANKS: Final = tuple(
    re.compile(pattern, re.IGNORECASE)
    for pattern in (
        r"^Train_Batch/PSNR$",
        r"(^|/)(val|test|held_out)[/_]psnr$",
        r"^Train/PSNR$",
        r"samples_per_ray",
        r"/n_active_|^Model/size",
        r"/mae$|mae_held_out|mean_angle",
        r"occupied_frac",
        r"accuracy$|/iou",
        r"loss",
        r"(^|/)(val|test|held_out)[/_]ssim$|SSIM/val$",
        r"lpips|clip_sim$",
        r"chamfer|f_score",
        r"psnr|ssim",
        r"starved|filled_rays|/rays$",
        r"visible|transparent|giant|needle|non_finite",
    )
)
_LATER: Final = re.compile(r"^(Reference|Eval/(Info|Baseline|[a-z]+_Stats|Histogram|Worst))/", re.IGNORECASE)


def qualities_among(names: Iterable[str]) -> list[str]:
    """Return the metrics of the model's quality, size and rendering, the most important first."""
    candidates = [name for name in names if not _SHOWN_ELSEWHERE.match(name)]
    # sorted is stable: metrics of equal rank keep the order in which they were first recorded.
    return sorted(candidates, key=_rank)


def _rank(name: str) -> int:
    if _LATER.match(name):
        # After all other metrics.
        return len(_RANKS) + 1
    return next((rank for rank, pattern in enumerate(_RANKS) if pattern.search(name)), len(_RANKS))
