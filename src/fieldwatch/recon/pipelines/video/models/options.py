"""Architecture knobs of the neural video models, with the names and defaults of the original scripts."""

import math
import re
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from fieldwatch import InputError

ModelName = Literal["grid", "dual", "hnerv", "nerv"]
NORMS = ("none", "bn", "in")
ACTIVATIONS = ("relu", "leaky", "leaky01", "relu6", "gelu", "sin", "swish", "softplus", "hardswish")
UPSAMPLERS = ("pshuffel", "conv", "interpolate")


@dataclass(frozen=True, kw_only=True)
class ModelOptions:
    """Knobs of the four models; what does not concern a model is ignored by it.

    Attributes:
        modelsize: million parameters of decoder + embeddings, from which the width follows; None takes `fc_dim`.
        fc_dim: channels of the first feature map; None means 512, or what `modelsize` asks for.
        embed: "pe_<base>_<levels>", frequencies pi * base^k, k < levels (dual, nerv).
        fc_hw: "<height>_<width>" of the first feature map; None derives it (9_16 for the literal dual model).
        dec_strds: upsampling factor per stage; None derives them (5 3 2 2 2 for the literal dual model).
        ks: "<encoder>_<first>_<largest>": stage i has kernel min(first + 2 i, largest).
        reduce: each stage divides the width by this; -1 divides by the square root of the stride.
        lower_width: no stage is narrower than this.
        num_blks: "<encoder>_<decoder>" blocks per stage.
        norm: normalisation after each convolution.
        act: activation after each normalisation.
        conv_type: encoder and decoder block types; the decoder's is pshuffel, conv or interpolate.
        clip_dim: length of the semantic embedding.
        out_bias: "tanh" ((tanh + 1) / 2), "sigmoid", or a number that is added to the RGB head's output.
        literal: dual only: reproduce the original output size and resample it to the patch.
        enc_strds: downsampling factor per encoder stage (hnerv); None derives them.
        enc_dim: "<width>_<embedding channels>" of the encoder; an embedding below 1 is a share of `modelsize` (hnerv).
        grid_cells: grid only, one entry per stage from here on: pixels per cell side, coarse to fine; each a multiple
            of the next. The RGB head writes one finest cell at once.
        grid_widths: channels of the stage's feature map.
        grid_channels: channels of the grid that changes over time; 0 for none.
        grid_periods: frames between two keys of that grid, which is linear in between.
        grid_static: channels of the grid that stays the same over time; 0 for none.
        grid_blocks: refinement blocks.
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
        """Refuse what no model could be built from; every message says what was wanted."""
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
            raise InputError(f"modelsize is {self.modelsize}, wanted million parameters > 0, as in 0.75")
        if self.modelsize is not None and self.fc_dim is not None:
            raise InputError(f"modelsize {self.modelsize} and fc_dim {self.fc_dim} both set the width: give one")
        if self.reduce != -1 and not self.reduce >= 1:
            raise InputError(f"reduce is {self.reduce}, wanted -1 (square root of the stride) or a divisor >= 1")

    def _check_grid(self) -> None:
        stages = len(self.grid_cells)
        for name in ("grid_widths", "grid_channels", "grid_periods", "grid_static", "grid_blocks"):
            if len(getattr(self, name)) != stages or stages == 0:
                msg = f"{name} {getattr(self, name)} and grid_cells {self.grid_cells} need one entry per stage each"
                raise InputError(msg)
        for name, least in (("cells", 1), ("widths", 1), ("channels", 0), ("static", 0), ("blocks", 0)):
            _at_least(f"every entry of grid_{name}", min(getattr(self, f"grid_{name}")), least)
        if not min(self.grid_periods) > 0:
            raise InputError(f"grid_periods are {self.grid_periods}, wanted frames between keys > 0")
        if any(a % b or a == b for a, b in pairwise(self.grid_cells)):
            raise InputError(f"grid_cells are {self.grid_cells}, wanted each a multiple of the next, as in 16 8 4")
        if self.grid_channels[0] + self.grid_static[0] == 0:
            raise InputError("the first stage has neither grid_channels nor grid_static: give it one of them")
        if self.grid_kernel < 1 or self.grid_kernel % 2 == 0:
            raise InputError(f"grid_kernel is {self.grid_kernel}, wanted an odd number, as in 5")

    def _check_patterns(self) -> None:
        _match("embed", self.embed, r"pe_\d+(\.\d+)?_[1-9]\d*", "pe_<base>_<levels>, as in pe_1.25_80")
        _match("ks", self.ks, r"\d+_\d*[13579]_\d*[13579]", "<encoder>_<first>_<largest>, odd kernels, as in 0_1_5")
        _match("num_blks", self.num_blks, r"[1-9]\d*_[1-9]\d*", "<encoder>_<decoder> blocks, as in 1_1")
        _match("enc_dim", self.enc_dim, r"[1-9]\d*_(\d+\.\d+|[1-9]\d*)", "<width>_<embedding>, as in 64_16")
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
                raise InputError(f"{name} is {value!r}, choose one of {', '.join(choices)}")

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
        raise InputError(f"{name} is {value}, it must be at least {least}: raise it")


def _match(name: str, value: str, pattern: str, wanted: str) -> None:
    if re.fullmatch(pattern, value) is None:
        raise InputError(f"{name} is {value!r}, wanted {wanted}")
