"""Everything a video run depends on, in one frozen value."""

from dataclasses import dataclass, field
from pathlib import Path

from fieldwatch.pipeline import AT_LEAST_ONE, FINITE_WEIGHT, NOT_NEGATIVE, POSITIVE, Device, refuse_out_of_bounds
from fieldwatch.recon.pipelines.video.models import ModelName, ModelOptions

_COUNTS = ("count", "stride", "rows", "columns", "epochs", "batch", "eval_freq", "checkpoint_epochs", "keep_last")
_NATURALS = ("start", "pixel_loss_warmup_epochs", "attribute_every", "keep_every", "keep_best", "threads", "seed")


@dataclass(frozen=True, kw_only=True)
class VideoConfig:
    """A video run. Names follow the original scripts where they had one.

    Attributes:
        data: folder of frames, or a video file; None is the built-in clip.
        vid: name of the clip in logs; None takes the name of ``data``.
        crop: centre crop "H_W" before the resize, "H_W_last" after it, "-1" none.
        resize: "H_W" or one number for the shorter side (bicubic), "-1" none.
        start: first frame used.
        count: how many frames are used; None means all.
        stride: every so many frames.
        rows: patch rows.
        columns: patch columns.
        data_split: "a_b_c": of every c frames the first a train, the b-th and later are held out.
        shuffle_data: shuffle the frame order before the split.
        model: which network.
        options: its architecture.
        loss: pixel loss: L1, L2, SSIM, Fusion1..Fusion12, Fusion10_freq.
        pixel_weight: weight of the pixel loss.
        clip_loss_weight: weight of 1 - cosine to the teacher's embedding; 0 leaves the head untrained.
        pixel_loss_warmup_epochs: epochs before the semantic term starts.
        between_weight: weight of the interpolation prior at times between two training frames; 0 leaves it out.
        teacher: "auto" (CLIP if its weights are here, else the descriptor), "descriptor", or a CLIP folder or name.
        epochs: passes over the training units.
        batch: units (patches or frames, see the model) per step.
        lr: peak learning rate of Adam.
        lr_type: schedule, "cosine_<up>_<pow>_<min>" or "hybrid_<up>_<uppow>_<downpow>_<min>_<final>".
        beta1: Adam's decay of the mean.
        beta2: Adam's decay of the variance.
        clip_norm: limit for the total gradient norm; None for no clipping.
        eval_freq: epochs between evaluations.
        attribute_every: steps between measurements of which term pulls which group; 0 never.
        checkpoint_epochs: epochs between checkpoints.
        keep_last: newest checkpoints that stay.
        keep_every: steps between checkpoints that stay for ever; 0 none.
        keep_best: best checkpoints (by held-out PSNR) that stay.
        amp: bfloat16 autocast of the network.
        compile: torch.compile the network.
        threads: CPU threads; 0 leaves torch's own choice.
        device: where to train.
        seed: of weights, batch order and everything else that is random.
        cache: folder for the teacher's embeddings; None is ~/.cache/fieldwatch/targets.

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
    threads: int = 0
    device: Device = "auto"
    seed: int = 1
    cache: Path | None = None

    def __post_init__(self) -> None:
        """Refuse what cannot be trained."""
        refuse_out_of_bounds(
            self,
            (*AT_LEAST_ONE, _COUNTS),
            (*NOT_NEGATIVE, _NATURALS),
            (*FINITE_WEIGHT, ("clip_loss_weight", "between_weight")),
            (*POSITIVE, ("lr", "pixel_weight", "clip_norm")),
            ("a decay from 0 up to (not including) 1", lambda value: 0 <= value < 1, ("beta1", "beta2")),
        )

    @property
    def name(self) -> str:
        """What the clip is called in logs."""
        return self.vid or (self.data.name if self.data else "built-in clip")
