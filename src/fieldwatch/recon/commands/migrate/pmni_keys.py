"""Table of all keys of the files of PMNI and SuperNormal: the kind of their value, and the corresponding setting."""

import difflib
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fieldwatch.recon.commands.migrate.pmni_hocon import Conf, ConfEntry, ConfError, Value


@dataclass(frozen=True, kw_only=True)
class Kind:
    """A kind of value.

    Attributes:
        wanted: description of valid values, for messages.
        fits: function that checks a value.
        typed: function that converts a value to its Python type.
    """

    wanted: str
    fits: Callable[[Any], bool]
    typed: Callable[[Any], Any] = lambda value: value


def _is_number(value: Any) -> bool:
    # bool is a subclass of int.
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and math.isfinite(value) and float(value).is_integer()


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value)


NUMBER = Kind(wanted="a number, such as 1e-3", fits=_is_number, typed=float)
WHOLE = Kind(wanted="a whole number", fits=_is_whole, typed=int)
COUNT = Kind(wanted="a whole number, 1 or more", fits=lambda value: _is_whole(value) and value >= 1, typed=int)
TRUTH = Kind(wanted="True or False", fits=lambda value: isinstance(value, bool))
TEXT = Kind(wanted="a string", fits=_is_text)
WHOLES = Kind(
    wanted="a list of whole numbers, such as [0, 4]",
    fits=lambda value: isinstance(value, list) and all(map(_is_whole, value)),
)
TEXTS = Kind(
    wanted="a list of strings, such as [./, ./models]",
    fits=lambda value: isinstance(value, list) and all(map(_is_text, value)),
)


@dataclass(frozen=True, kw_only=True)
class Key:
    """A key of PMNI's files.

    Attributes:
        kind: kind of its value.
        field: dotted config field that it sets directly, such as "rates.lr"; None if it sets several fields or none.
        only: accepted values; empty means any.
        why: reason why other values are refused, or why the key has no effect.
        idle: whether no value has an effect, which is noted at the start.
        published: values of the published files, if the key has no effect; other values have a note of their own.
    """

    kind: Kind
    field: str | None = None
    only: tuple[Value, ...] = ()
    why: str = ""
    idle: bool = False
    published: tuple[Value, ...] = ()


def _fixed(kind: Kind, *only: Value, why: str) -> Key:
    """Return a key that is accepted at fixed values only: those that fieldwatch implements."""
    return Key(kind=kind, only=only, why=why)


def _ignored(kind: Kind, *published: Value, why: str) -> Key:
    """Return a key without effect; every value is accepted."""
    return Key(kind=kind, published=published, why=why, idle=True)


_DEPTH_SCALE = "the scale of each view's depth is computed, not trained"
_GENERAL = {
    "dataset_class": _fixed(TEXT, "models.dataset_loader.Dataset", why="there is one reader of maps"),
    "renderer_class": _fixed(TEXT, "models.renderer.NeuSRenderer", why="there is one renderer, NeuS"),
    "base_exp_dir": Key(kind=TEXT),
    "recording": _ignored(TEXTS, ["./", "./models"], why="run.json holds every setting and the versions of the code"),
    "pose_init_radius": Key(kind=NUMBER, field="poses.ring_radius"),
    "pose_init_angle": Key(kind=NUMBER, field="poses.ring_angle"),
    "clock_wise": Key(kind=TRUTH, field="poses.clockwise"),
}
_DATASET = {
    "data_dir": Key(kind=TEXT),
    "normal_dir": Key(kind=TEXT, field="normals"),
    "cameras_name": _fixed(TEXT, "cameras_sphere.npz", why="cameras are read from the file of this name"),
    "exclude_views": Key(kind=WHOLES),
    "upsample_factor": _fixed(WHOLE, 1, why="maps are never upsampled; --longer-side reduces them"),
    "depth_dir": Key(kind=TEXT, field="depth"),
    # Another folder may hold another depth, so that ignoring it would change what is trained.
    "perspective_dir": Key(
        kind=TEXT,
        only=("integration/perspective",),
        published=("integration/perspective",),
        why="distances along rays are computed from the depth in depth_dir",
        idle=True,
    ),
    "add_pose_noise": Key(kind=TRUTH),
    "rotation_noise_std": Key(kind=NUMBER),
    "translation_noise_std": Key(kind=NUMBER, field="poses.translation_noise"),
    "depth_init_scale": _ignored(NUMBER, 14.6, 1.5, 2.5, 3.5, why=_DEPTH_SCALE),
}
_TRAIN = {
    "change_posenet_epoch": _ignored(WHOLE, 2000, 99999, why="PMNI reads it and does nothing with it"),
    "add_normal_loss_epoch": Key(kind=WHOLE),
    "learning_rate": Key(kind=NUMBER, field="rates.lr"),
    "learning_rate_alpha": Key(kind=NUMBER, field="rates.last_share"),
    "pose_lr": Key(kind=NUMBER),
    "scale_lr": _ignored(NUMBER, 5e-4, 0, why=_DEPTH_SCALE),
    "end_iter": Key(kind=COUNT),
    "increase_bindwidth_every": Key(kind=COUNT),
    "warm_up_end": Key(kind=WHOLE, field="rates.warm_up"),
    "gradient_method": Key(
        kind=TEXT, field="rendering.gradient_method", only=("ad", "fd", "dfd"), why="these are the implemented methods"
    ),
    "batch_size": Key(kind=COUNT),
    "patch_size": Key(kind=COUNT, field="rendering.patch"),
    "use_white_bkgd": _fixed(TRUTH, False, why="normals have no background color"),
    "pc_ratio": Key(kind=NUMBER),
    "loss_type": Key(
        kind=TEXT, field="terms.normal_norm", only=("l1", "l2"), why="differences of normals are absolute or squared"
    ),
    "depth_loss_type": _fixed(TEXT, "l1", why="the depth term takes absolute differences"),
}
TERMS = {
    "normal": "normal",
    "depth": "depth",
    "pc": "point_cloud",
    "mask": "mask",
    "eikonal": "eikonal",
    "sdf": "surface",
    "con": "consistency",
}
"""Names of the loss terms, by PMNI's name."""
SINGLE = ("normal", "mask", "eikonal")
"""Names of the loss terms of SuperNormal, which has one stage."""
STAGES = {"s1": 0, "s2": 10_000, "s3": 20_000}
"""PMNI's stages and the iterations at which they begin."""
_WEIGHTS = {f"{term}_weight_{stage}": Key(kind=NUMBER) for stage in STAGES for term in TERMS}
_VAL = {
    "save_freq": Key(kind=COUNT, field="checkpoint_interval"),
    "val_normal_freq": Key(kind=COUNT, field="pictures_at"),
    "val_normal_resolution_level": _ignored(WHOLE, 1, 4, why="evaluations use all pixels"),
    # SuperNormal evaluates with the differences that it trains with.
    "gradient_method": _ignored(TEXT, "ad", "dfd", why="evaluations take exact gradients"),
    "val_mesh_freq": Key(kind=COUNT, field="mesh_at"),
    "val_mesh_res": Key(kind=COUNT, field="mesh_resolution"),
    "report_freq": Key(kind=COUNT),
    "eval_metric_freq": Key(kind=COUNT, field="evaluate_at"),
    "visual_pose_freq": Key(kind=COUNT, field="poses_at"),
}
_SDF = {
    "d_out": _fixed(WHOLE, 1, why="the field has one value, the distance"),
    "d_in": _fixed(WHOLE, 3, why="points have three coordinates"),
    "d_hidden": Key(kind=COUNT, field="sdf.hidden"),
    "n_layers": Key(kind=COUNT, field="sdf.layers"),
    "skip_in": _fixed(
        WHOLES, [-1], why="the network has no skip connections: one hidden layer after an encoding needs none"
    ),
    "bias": Key(kind=NUMBER, field="sdf.radius"),
    "geometric_init": _fixed(TRUTH, True, why="the field starts as a sphere; otherwise there is no initial surface"),
    "weight_norm": Key(kind=TRUTH),
    "input_concat": Key(kind=TRUTH),
}
_RAY_MARCHING = {
    "start_step_size": Key(kind=NUMBER, field="rendering.first_step"),
    "end_step_size": Key(kind=NUMBER, field="rendering.last_step"),
    "occ_threshold": Key(kind=NUMBER, field="rendering.grid_threshold"),
    "occ_sigmoid_k": Key(kind=NUMBER, field="rendering.grid_sharpness"),
    "occ_resolution": Key(kind=COUNT, field="rendering.grid_resolution"),
    "occ_update_freq": Key(kind=COUNT, field="rendering.grid_every"),
}
_ENCODING = {
    "otype": _fixed(TEXT, "HashGrid", why="there is one encoding, the hash grid"),
    "n_levels": Key(kind=COUNT, field="sdf.levels"),
    "n_features_per_level": Key(kind=COUNT, field="sdf.features_per_level"),
    "log2_hashmap_size": Key(kind=COUNT, field="sdf.table_bits"),
    "base_resolution": Key(kind=COUNT, field="sdf.base_resolution"),
    "per_level_scale": Key(kind=NUMBER),
}
_LEARN_SCALE = {
    "existscalenet": _ignored(TRUTH, True, why=_DEPTH_SCALE),
    "learn_scale": _ignored(TRUTH, True, False, why=_DEPTH_SCALE),
    "fix_scaleN": _ignored(TRUTH, True, why=_DEPTH_SCALE),
    "scale_N": _ignored(NUMBER, 1.0, why=_DEPTH_SCALE),
}
_LEARN_POSE = {name: Key(kind=TRUTH) for name in ("learn_pose", "learn_R", "learn_t", "init_pose")}
KEYS: dict[str, Key] = {
    f"{block}.{name}": key
    for block, keys in {
        "general": _GENERAL,
        "dataset": _DATASET,
        "train": _TRAIN | _WEIGHTS,
        "val": _VAL,
        "model.sdf_network": _SDF,
        "model.variance_network": {"init_val": Key(kind=NUMBER)},
        "model.ray_marching": _RAY_MARCHING,
        "model.encoding": _ENCODING,
        "model.LearnScale": _LEARN_SCALE,
        "model.LearnPose": _LEARN_POSE,
    }.items()
    for name, key in keys.items()
}
"""All keys of PMNI by dotted name."""
_CAMERAS = "cameras are read from the file of this name"
ALL_KEYS: dict[str, Key] = KEYS | {
    # SuperNormal has one stage, and repeats NeuS's names of the cameras file.
    **{f"train.{term}_weight": Key(kind=NUMBER) for term in SINGLE},
    "dataset.render_cameras_name": _fixed(TEXT, "cameras_sphere.npz", why=_CAMERAS),
    "dataset.object_cameras_name": _fixed(TEXT, "cameras_sphere.npz", why=_CAMERAS),
}
"""All keys, with those that only SuperNormal's files have."""


def refuse_unknown(conf: Conf) -> Mapping[str, ConfEntry]:
    """Return the settings of a file after checking every key and value.

    Raises:
        ConfError: a key is unknown or its value is not accepted; the message names file and line of the first one.
    """
    # An empty block `model.encoding: null` means the same as no block.
    known = {name: entry for name, entry in conf.entries.items() if (name, entry.value) != ("model.encoding", None)}
    for name, entry in known.items():
        where = f"{conf.path}:{entry.line}: {name}"
        if name not in ALL_KEYS:
            raise ConfError(f"{where} is not a key of PMNI's files{_nearest(name)}")
        key = ALL_KEYS[name]
        if not key.kind.fits(entry.value):
            raise ConfError(f"{where} must be {key.kind.wanted}, got {format_value(entry.value)}")
        if key.only and entry.value not in key.only:
            values = " or ".join(map(format_value, key.only))
            raise ConfError(f"{where} must be {values} here ({key.why}), got {format_value(entry.value)}")
    return known


def _nearest(name: str) -> str:
    """Return a hint at a similar key: in the same block, or with the same name in another block."""
    block, _, last = name.rpartition(".")
    here = [each.rpartition(".")[2] for each in KEYS if each.rpartition(".")[0] == block]
    near = [f"{block}.{each}" for each in difflib.get_close_matches(last, here, n=1)]
    # Keys are often moved to the wrong block.
    near += [each for each in KEYS if each.endswith(f".{last}")]
    near += difflib.get_close_matches(name, KEYS, n=1)
    return f"; did you mean {near[0]}?" if near else f"; known blocks: {', '.join(_blocks())}"


def _blocks() -> list[str]:
    return list(dict.fromkeys(name.rpartition(".")[0] for name in KEYS))


def format_value(value: Value) -> str:
    """Return a value as it is written in a file."""
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    return "null" if value is None else str(value)
