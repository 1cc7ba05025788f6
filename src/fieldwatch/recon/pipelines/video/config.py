"""Configuration of a video run, as a frozen dataclass."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from fieldwatch.pipeline import AT_LEAST_ONE, FINITE_WEIGHT, NOT_NEGATIVE, POSITIVE, Device, refuse_out_of_bounds
from fieldwatch.recon.pipelines.video.models import ModelName, ModelOptions

BetweenMotion = Literal["straight", "curved"]
"""Shape of the paths that the interpolation prior follows."""

# Settings that share a bound: at least 1, and 0 or more.
_COUNTS = ("count", "stride", "rows", "columns", "epochs", "batch", "eval_freq", "checkpoint_epochs", "keep_last")
_NATURALS = ("start", "pixel_loss_warmup_epochs", "attribute_every", "keep_every", "keep_best", "threads", "seed")


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """Configuration of a video run. Options that the original scripts have keep their names.

    Attributes:
        data: folder of frames, or a video file; None uses the built-in clip.
        vid: name of the clip in logs; None takes the name of ``data``.
        crop: center crop, "H_W" before the resize or "H_W_last" after it; "-1" disables it.
        resize: size "H_W", or one number for the shorter side (bicubic); "-1" disables it.
        start: index of the first frame to use.
        count: number of frames to use; None uses all.
        stride: frame interval; 2 uses every second frame.
        rows: number of patch rows per frame.
        columns: number of patch columns per frame.
        data_split: "a_b_c": of every c frames, the first a are for training, the b-th and later are held out.
        shuffle_data: shuffle the frame order before the split.
        model: network architecture.
        options: options of the architecture.
        loss: pixel loss: L1, L2, SSIM, Fusion1..Fusion12, Fusion10_freq.
        pixel_weight: weight of the pixel loss.
        clip_loss_weight: weight of 1 - cosine to the teacher's embedding; 0 leaves the semantic head untrained.
        pixel_loss_warmup_epochs: number of epochs before the semantic term starts.
        between_weight: weight of the interpolation prior at times between two training frames; 0 disables it.
        between_motion: paths that the prior follows: "straight" ones between two training frames, or "curved" ones
            through up to four, which it continues past the first and last.
        teacher: "auto" (CLIP if its weights are available, else the descriptor), "descriptor", or a CLIP folder or
            name.
        epochs: number of passes over the training units.
        batch: units (patches or frames, depending on the model) per step.
        lr: peak learning rate of Adam.
        lr_type: schedule, "cosine_<up>_<pow>_<min>" or "hybrid_<up>_<uppow>_<downpow>_<min>_<final>".
        beta1: Adam's decay rate of the first moment.
        beta2: Adam's decay rate of the second moment.
        clip_norm: maximum total gradient norm; None disables clipping.
        eval_freq: epochs between evaluations.
        attribute_every: steps between measurements of each term's gradient on each parameter group; 0 disables them.
        checkpoint_epochs: epochs between checkpoints.
        keep_last: number of newest checkpoints to keep.
        keep_every: steps between checkpoints that are kept forever; 0 keeps none.
        keep_best: number of best checkpoints (by held-out PSNR) to keep.
        amp: bfloat16 autocast of the network.
        compile: compile the network with torch.compile.
        cuda_graphs: launch the network's forward and backward pass as CUDA graphs, for small frames on a GPU; not yet
            run on a GPU.
        threads: number of CPU threads; 0 keeps torch's default.
        deterministic: use algorithms that repeat to the bit on a GPU, which are slower, and stop at an operation that
            has none.
        device: training device.
        seed: seed of weights, batch order and all other random numbers.
        cache: folder for the teacher's embeddings; None uses ~/.cache/fieldwatch/targets.

    Raises:
        ValueError: a value is out of its bounds.
    """

    data: Path | None = None
    vid: str | None = None
    crop: str = "-1"
    resize: str = "-1"
    start: int = 0
    count: int | None = None
    stride: int = 1
    rows: int = 2
    columns: int = 4
    data_split: str = "7_7_8"
    shuffle_data: bool = False
    model: ModelName = "grid"
    options: ModelOptions = field(default_factory=ModelOptions)
    loss: str = "L2"
    pixel_weight: float = 1.0
    clip_loss_weight: float = 0.1
    pixel_loss_warmup_epochs: int = 50
    between_weight: float = 0.0
    between_motion: BetweenMotion = "straight"
    teacher: str = "auto"
    epochs: int = 300
    batch: int = 2
    lr: float = 1e-3
    lr_type: str = "cosine_0.1_1_0.1"
    beta1: float = 0.9
    beta2: float = 0.999
    clip_norm: float | None = None
    eval_freq: int = 10
    attribute_every: int = 200
    checkpoint_epochs: int = 10
    keep_last: int = 2
    keep_every: int = 0
    keep_best: int = 1
    amp: bool = False
    compile: bool = False
    cuda_graphs: bool = False
    threads: int = 0
    deterministic: bool = False
    device: Device = "auto"
    seed: int = 1
    cache: Path | None = None

    def __post_init__(self) -> None:
        """Check the bounds."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, _COUNTS),
            (*NOT_NEGATIVE, _NATURALS),
            # The pixel loss is always active, so its weight must be positive; the other terms may be off.
            (*FINITE_WEIGHT, ("clip_loss_weight", "between_weight")),
            (*POSITIVE, ("lr", "pixel_weight", "clip_norm")),
            ("at least 0 and less than 1", lambda value: 0 <= value < 1, ("beta1", "beta2")),
        )

    @property
    def name(self) -> str:
        """Name of the clip in logs."""
        return self.vid or (self.data.name if self.data else "built-in clip")
