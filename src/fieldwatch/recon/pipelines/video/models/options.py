"""Architecture options of the neural video models, with the names and defaults of the original scripts."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fieldwatch import InputError

ModelName = Literal["grid", "dual", "hnerv", "nerv"]
NORMS = ("none", "bn", "in")
# Names and spelling ("pshuffel") are those of the original scripts.
ACTIVATIONS = ("relu", "leaky", "leaky01", "relu6", "gelu", "sin", "swish", "softplus", "hardswish")
UPSAMPLERS = ("pshuffel", "conv", "interpolate")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Options of the four models; each model ignores those that do not apply to it.

    Attributes:
        modelsize: million parameters of decoder and embeddings, from which the width is derived; None uses `fc_dim`.
        fc_dim: channels of the first feature map; None uses 512, or the width for `modelsize`.
        embed: positional encoding "pe_<base>_<levels>" with frequencies pi * base^k, k < levels (dual, nerv).
        fc_hw: size "<height>_<width>" of the first feature map; None derives it (9_16 for the literal dual model).
        dec_strds: upsampling factor per stage; None derives them (5 3 2 2 2 for the literal dual model).
        ks: kernel sizes "<encoder>_<first>_<largest>": stage i has kernel min(first + 2 i, largest).
        reduce: divisor of the width per stage; -1 divides by the square root of the stride.
        lower_width: minimum width of a stage.
        num_blks: blocks per stage, "<encoder>_<decoder>".
        norm: normalization after each convolution.
        act: activation after each normalization.
        conv_type: encoder and decoder block types; the decoder's is pshuffel, conv or interpolate.
        clip_dim: length of the semantic embedding.
        out_bias: output map of the RGB head: "tanh" ((tanh + 1) / 2), "sigmoid", or a number that is added.
        literal: dual only: reproduce the original output size and resample it to the patch.
        enc_strds: downsampling factor per encoder stage (hnerv); None derives them.
        enc_dim: encoder size "<width>_<embedding channels>"; an embedding below 1 is a fraction of `modelsize` (hnerv).
        grid_cells: grid only, like all following options, with one entry per stage: pixels per cell side, coarse to
            fine, each a multiple of the next. The RGB head writes a whole cell of the finest stage at once.
        grid_widths: channels of each stage's feature map.
        grid_channels: channels of each stage's time-dependent grid; 0 for none.
        grid_periods: frames between two keys of that grid, which is interpolated linearly.
        grid_static: channels of each stage's static grid; 0 for none.
        grid_blocks: number of refinement blocks per stage.
        grid_kernel: side of the depthwise kernel in every refinement block.
    """

    modelsize: float | None = None
    fc_dim: int | None = None
    embed: str = "pe_1.25_80"
    fc_hw: str | None = None
    dec_strds: tuple[int, ...] | None = None
    ks: str = "0_3_3"
    reduce: float = 1.2
    lower_width: int = 32
    num_blks: str = "1_1"
    norm: Literal["none", "bn", "in"] = "none"
    act: Literal["relu", "leaky", "leaky01", "relu6", "gelu", "sin", "swish", "softplus", "hardswish"] = "gelu"
    conv_type: tuple[str, str] = ("convnext", "pshuffel")
    clip_dim: int = 512
    out_bias: str = "tanh"
    literal: bool = False
    enc_strds: tuple[int, ...] | None = None
    enc_dim: str = "64_16"
    grid_cells: tuple[int, ...] = (16, 8, 4)
    grid_widths: tuple[int, ...] = (64, 64, 48)
    grid_channels: tuple[int, ...] = (20, 8, 4)
    grid_periods: tuple[float, ...] = (1.0, 2.0, 4.0)
    grid_static: tuple[int, ...] = (8, 0, 8)
    grid_blocks: tuple[int, ...] = (1, 1, 1)
    grid_kernel: int = 5

    def __post_init__(self) -> None:
        """Check all options."""
        self._check_sizes()
        self._check_grid()
        self._check_patterns()
        self._check_choices()

    def _check_sizes(self) -> None:
        _at_least("lower_width", self.lower_width, 1)
        _at_least("clip_dim", self.clip_dim, 1)
        if self.fc_dim is not None:
            _at_least("fc_dim", self.fc_dim, 1)
        for stride in (*(self.dec_strds or ()), *(self.enc_strds or ())):
            _at_least("every stride in dec_strds and enc_strds", stride, 1)
        if self.modelsize is not None and not (math.isfinite(self.modelsize) and self.modelsize > 0):
            raise InputError(f"modelsize must be a number of million parameters > 0, e.g. 0.75, got {self.modelsize}")
        if self.modelsize is not None and self.fc_dim is not None:
            raise InputError(f"modelsize {self.modelsize} and fc_dim {self.fc_dim} both set the width: give only one")
        if self.reduce != -1 and not self.reduce >= 1:
            raise InputError(f"reduce must be -1 (square root of the stride) or a divisor >= 1, got {self.reduce}")

    def _check_grid(self) -> None:
        # `grid_cells` defines the number of stages; the other tuples have to match it.
        stages = len(self.grid_cells)
        for name in ("grid_widths", "grid_channels", "grid_periods", "grid_static", "grid_blocks"):
            if len(getattr(self, name)) != stages or stages == 0:
                msg = f"{name} and grid_cells need one entry per stage, got {getattr(self, name)} and {self.grid_cells}"
                raise InputError(msg)
        for name, least in (("cells", 1), ("widths", 1), ("channels", 0), ("static", 0), ("blocks", 0)):
            _at_least(f"every entry of grid_{name}", min(getattr(self, f"grid_{name}")), least)
        # Each entry by itself: `min` may return any of them if one is NaN.
        if not all(0 < period < math.inf for period in self.grid_periods):
            raise InputError(f"grid_periods must be finite numbers of frames > 0, got {self.grid_periods}")
        # Each stage enlarges by an integer factor of at least 2.
        if any(a % b or a == b for a, b in pairwise(self.grid_cells)):
            raise InputError(f"each of grid_cells must be a multiple of the next, e.g. 16 8 4, got {self.grid_cells}")
        # Later stages can do without grids, since they receive coarser features.
        if self.grid_channels[0] + self.grid_static[0] == 0:
            raise InputError("the first stage needs grid_channels or grid_static above 0, got 0 for both")
        if self.grid_kernel < 1 or self.grid_kernel % 2 == 0:
            raise InputError(f"grid_kernel must be odd, e.g. 5, got {self.grid_kernel}")

    def _check_patterns(self) -> None:
        _match("embed", self.embed, r"pe_\d+(\.\d+)?_[1-9]\d*", "pe_<base>_<levels>, as in pe_1.25_80")
        _match("ks", self.ks, r"\d+_\d*[13579]_\d*[13579]", "<encoder>_<first>_<largest>, odd kernels, as in 0_1_5")
        _match("num_blks", self.num_blks, r"[1-9]\d*_[1-9]\d*", "<encoder>_<decoder> blocks, as in 1_1")
        _match("enc_dim", self.enc_dim, r"[1-9]\d*_(\d+\.\d+|[1-9]\d*)", "<width>_<embedding>, as in 64_16")
        # Values in these notations are parsed where they are used; here only their form is checked.
        _match("out_bias", self.out_bias, r"tanh|sigmoid|[+-]?\d+(\.\d+)?", "tanh, sigmoid or a number, as in 0.5")
        if self.fc_hw is not None:
            _match("fc_hw", self.fc_hw, r"[1-9]\d*_[1-9]\d*", "<height>_<width>, as in 4_4")

    def _check_choices(self) -> None:
        for name, value, choices in (
            ("norm", self.norm, NORMS),
            ("act", self.act, ACTIVATIONS),
            ("the decoder entry of conv_type", self.conv_type[1], UPSAMPLERS),
            ("the encoder entry of conv_type", self.conv_type[0], ("convnext",)),
        ):
            if value not in choices:
                raise InputError(f"{name} must be one of {', '.join(choices)}, got {value!r}")

    @property
    def kernels(self) -> tuple[int, int]:
        """First and largest decoder kernel (from `ks`)."""
        _, first, largest = self.ks.split("_")
        return int(first), int(largest)

    @property
    def blocks(self) -> tuple[int, int]:
        """Blocks per encoder stage and per decoder stage (from `num_blks`)."""
        encoder, decoder = self.num_blks.split("_")
        return int(encoder), int(decoder)


def _at_least(name: str, value: int, least: int) -> None:
    if value < least:
        raise InputError(f"{name} must be at least {least}, got {value}")


def _match(name: str, value: str, pattern: str, description: str) -> None:
    if re.fullmatch(pattern, value) is None:
        raise InputError(f"{name} must be {description}, got {value!r}")
