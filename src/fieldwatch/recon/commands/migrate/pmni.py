"""Conversion of the .conf files of PMNI and SuperNormal: every key is used, known to have no effect, or refused."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from fieldwatch import InputError
from fieldwatch.recon.commands.migrate.pmni_hocon import Conf, ConfEntry, ConfError, read_conf
from fieldwatch.recon.commands.migrate.pmni_keys import ALL_KEYS, SINGLE, STAGES, TERMS, format_value, refuse_unknown
from fieldwatch.recon.pipelines.normals import NormalsConfig

Fallback = TypeVar("Fallback")
ENCODING = ("model.encoding.n_levels", "model.encoding.base_resolution", "model.encoding.per_level_scale")
"""Keys that together determine the resolutions of the levels."""
POSE_RATE_FALLS = 10_000
"""Iteration at which PMNI halves the learning rate of the poses."""
_CHANGED = {
    "general.clock_wise": False,
    "train.loss_type": "l2",
    "model.ray_marching.occ_sigmoid_k": 80,
    "model.ray_marching.occ_resolution": 128,
    "dataset.exclude_views": [],
}
"""Values that PMNI hard-codes for these keys, regardless of the file."""


@dataclass(frozen=True, kw_only=True)
class PmniSettings:
    """Result of reading a .conf file of PMNI.

    Attributes:
        config: config of the training; settings that are not in the file are those of the preset.
        out: run folder named in the file, or None.
        log_every: number of steps between two summary lines of the log, or None.
        notes: differences that the user should know.
    """

    config: NormalsConfig
    out: Path | None
    log_every: int | None
    notes: tuple[str, ...]


def read_pmni(path: Path, base: NormalsConfig, *, object_name: str | None = None) -> PmniSettings:
    """Read a .conf file of PMNI (HOCON).

    Args:
        path: path of the file.
        base: config for settings that are not in the file.
        object_name: name of the object that replaces CASE_NAME.

    Raises:
        ConfError: the file cannot be read or used; the message gives file, line, key and the expected value.
    """
    conf = read_conf(path, object_name=object_name)
    settings = _ConfValues(path, refuse_unknown(conf))
    for name, entry in settings.entries.items():
        if "CASE_NAME" in str(entry.value):
            raise ConfError(
                f"{path}:{entry.line}: {name} is {format_value(entry.value)}: give the object that replaces CASE_NAME "
                "with --obj-name NAME"
            )
    fields = _direct(settings) | _data(settings, base) | _field(settings, base) | _schedule(settings) | _poses(settings)
    out = settings.value("general.base_exp_dir", None)
    log_every = settings.value("val.report_freq", None)
    config = _configured(base, fields, settings)
    return PmniSettings(
        config=config,
        out=None if out is None else Path(out),
        log_every=None if log_every is None else int(log_every),
        notes=(*_notes(conf, settings, config), *_object_notes(conf, object_name)),
    )


@dataclass(frozen=True)
class _ConfValues:
    """Values of a file by key, and error messages with their lines."""

    path: Path
    entries: Mapping[str, ConfEntry]

    def value(self, name: str, fallback: Fallback) -> Any | Fallback:
        return self.entries[name].value if name in self.entries else fallback

    def has(self, *names: str) -> bool:
        return any(name in self.entries for name in names)

    def where(self, name: str) -> str:
        return f"{self.path}:{self.entries[name].line}: {name}"

    def together(self, names: tuple[str, ...]) -> list[Any] | None:
        """Return the values of keys that depend on each other; None if none of them is given."""
        if not self.has(*names):
            return None
        missing = [name for name in names if name not in self.entries]
        if missing:
            first = next(name for name in names if name in self.entries)
            raise ConfError(f"{self.where(first)} is given without {', '.join(missing)}: give all of them, or none")
        return [self.entries[name].value for name in names]


def _direct(settings: _ConfValues) -> dict[str, Any]:
    """Return the fields of keys that set one field directly."""
    known = ((ALL_KEYS[name], entry.value) for name, entry in settings.entries.items())
    return {key.field: key.kind.typed(value) for key, value in known if key.field is not None}


def _data(settings: _ConfValues, base: NormalsConfig) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if settings.has("dataset.data_dir"):
        fields["data"] = Path(settings.value("dataset.data_dir", ""))
    if settings.has("dataset.exclude_views"):
        fields["exclude"] = tuple(map(int, settings.value("dataset.exclude_views", [])))
    if settings.has("train.learning_rate"):
        # PMNI has one learning rate for the hash table and the network.
        fields["rates.lr_table"] = None
    # PMNI samples batch_size patches of patch_size x patch_size pixels from every view in turn.
    if settings.has("train.batch_size"):
        pixels = int(settings.value("train.patch_size", base.rendering.patch)) ** 2
        fields["rays.rays_per_view"] = int(settings.value("train.batch_size", 1)) * pixels
        fields |= {"rays.views_per_step": 0, "rays.sample_budget": None}
        if base.rays.warm_up_rays is not None:
            fields["rays.warm_up_rays"] = base.rays.warm_up_rays * pixels
    if settings.has("train.pc_ratio"):
        ratio = settings.value("train.pc_ratio", 1)
        if ratio < 1:
            raise ConfError(f"{settings.where('train.pc_ratio')} must be 1 or more (one pixel of N), got {ratio:g}")
        # PMNI uses one of pc_ratio pixels for the point cloud term.
        fields["terms.point_share"] = 1 / ratio
    return fields


def _field(settings: _ConfValues, base: NormalsConfig) -> dict[str, Any]:
    """Return the fields of the hash encoding, its progressive levels, and the deviation."""
    fields: dict[str, Any] = {}
    encoding = settings.together(ENCODING)
    levels = int(encoding[0]) if encoding else base.sdf.levels
    if encoding:
        fields["sdf.finest_resolution"] = _finest(settings, levels, int(encoding[1]), float(encoding[2]))
    else:
        _refuse_kept(settings)
    for name in ("model.sdf_network.weight_norm", "model.sdf_network.input_concat"):
        if encoding and settings.value(name, True) is False:
            raise ConfError(f"{settings.where(name)} must be True if there is a model.encoding, got False: remove it")
    if settings.has("train.increase_bindwidth_every"):
        # PMNI's counter of active levels starts at 1.
        fields["sdf.first_levels"] = 1.0
        fields["sdf.levels_by"] = int(settings.value("train.increase_bindwidth_every", 1)) * (levels - 1)
    elif encoding:
        fields["sdf.first_levels"] = min(base.sdf.first_levels, float(levels))
    # NeuS: s = exp(10 v) is the sharpness of the logistic density.
    if settings.has("model.variance_network.init_val"):
        start = settings.value("model.variance_network.init_val", 0.5)
        if not 0 <= start <= 1:
            where = settings.where("model.variance_network.init_val")
            raise ConfError(f"{where} must be v of s = exp(10 v) between 0 and 1, usually 0.5, got {start:g}")
        fields |= {"rendering.sharpness": "learned", "rendering.first_sharpness": math.exp(10 * start)}
    return fields


def _finest(settings: _ConfValues, levels: int, coarsest: int, scale: float) -> int:
    """Return the number of cells along an edge of the finest level, rounded as in tiny-cuda-nn."""
    if not 1 <= scale <= 8:
        raise ConfError(f"{settings.where(ENCODING[2])} must be a factor between levels, 1 to 8, got {scale:g}")
    # tiny-cuda-nn: resolution = ceil(base * scale^level - 1) + 1.
    return math.ceil(coarsest * scale ** min(levels - 1, 32) - 1) + 1


def _refuse_kept(settings: _ConfValues) -> None:
    """Refuse other keys of the encoding, which have no effect without its resolutions."""
    for name in settings.entries:
        if name.startswith("model.encoding."):
            raise ConfError(f"{settings.where(name)} is given without {', '.join(ENCODING)}: give all of them, or none")


def _schedule(settings: _ConfValues) -> dict[str, Any]:
    """Return the fields of run length, stages and intervals."""
    fields: dict[str, Any] = {}
    if settings.has("train.end_iter"):
        fields["steps"] = fields["nominal"] = int(settings.value("train.end_iter", 1))
    single = tuple(f"train.{term}_weight" for term in SINGLE)
    staged = tuple(f"train.{term}_weight_{stage}" for stage in STAGES for term in TERMS)
    if settings.has(*single) and settings.has(*staged):
        first = next(name for name in single if name in settings.entries)
        raise ConfError(
            f"{settings.where(first)} is SuperNormal's weight of all iterations, and the file has PMNI's weights of "
            "stages, too: remove one kind"
        )
    if (values := settings.together(single)) is not None:
        fields["stages"] = (_stage("fit", 0, dict(zip(SINGLE, values, strict=True))),)
    weights = settings.together(staged)
    if weights is not None:
        fields["stages"] = _stages(settings, int(settings.value("train.add_normal_loss_epoch", 0)))
    elif settings.has("train.add_normal_loss_epoch") and values is None:
        where = settings.where("train.add_normal_loss_epoch")
        raise ConfError(f"{where} is given without weights of the stages (train.normal_weight_s1, ...): give both")
    return fields


def _stages(settings: _ConfValues, normals_from: int) -> tuple[str, ...]:
    """Convert PMNI's stages; the normal term has weight 0 before ``normals_from``."""
    starts = list(STAGES.items())
    texts: list[str] = []
    for i, (stage, start) in enumerate(starts):
        weights = {ours: settings.value(f"train.{term}_weight_{stage}", 0) for term, ours in TERMS.items()}
        end = starts[i + 1][1] if i + 1 < len(starts) else math.inf
        # PMNI enables the normal term at an iteration of its own setting: the stage is split there.
        if weights["normal"] and start < normals_from:
            texts.append(_stage(stage, start, weights | {"normal": 0}))
            if normals_from < end:
                texts.append(_stage(f"{stage}-normals", normals_from, weights))
        else:
            texts.append(_stage(stage, start, weights))
    return tuple(texts)


def _stage(name: str, start: int, weights: Mapping[str, float]) -> str:
    return " ".join([f"{name}@{start}", *(f"{term}={weight:.12g}" for term, weight in weights.items() if weight)])


def _poses(settings: _ConfValues) -> dict[str, Any]:
    """Return the fields of the initial poses, and of whether they are trained."""
    fields: dict[str, Any] = {}
    noisy = settings.value("dataset.add_pose_noise", None)
    from_data = settings.value("model.LearnPose.init_pose", None)
    if noisy and from_data is False:
        raise ConfError(
            f"{settings.where('dataset.add_pose_noise')} is True and model.LearnPose.init_pose False: noise is "
            "added to the poses of the data, which a ring does not use; change one of them"
        )
    if noisy is not None or from_data is not None:
        fields["poses.pose_start"] = "noisy" if noisy else "ring" if from_data is False else "dataset"
    # PMNI has radians, fieldwatch degrees.
    if settings.has("dataset.rotation_noise_std"):
        fields["poses.rotation_noise"] = math.degrees(settings.value("dataset.rotation_noise_std", 0.0))
    rate = settings.value("train.pose_lr", None)
    # The published files have 5e-4, while PMNI hard-codes 1e-3, later 5e-4: the file's value is the later one.
    if rate:
        fields |= {"rates.lr_poses": 2 * rate, "rates.lr_poses_late": rate, "rates.poses_late_from": POSE_RATE_FALLS}
    learned = settings.value("model.LearnPose.learn_pose", True) and rate != 0
    for key, field in (("learn_R", "poses.learn_rotation"), ("learn_t", "poses.learn_translation")):
        chosen = settings.value(f"model.LearnPose.{key}", None)
        if chosen is not None or not learned:
            fields[field] = bool(chosen) and learned
    return fields


def _configured(base: NormalsConfig, fields: Mapping[str, Any], settings: _ConfValues) -> NormalsConfig:
    """Return the base with changed fields; an error names the line of the key that caused it."""
    groups: dict[str, dict[str, Any]] = {}
    for name, value in fields.items():
        group, _, last = name.rpartition(".")
        groups.setdefault(group, {})[last] = value
    try:
        parts = {group: replace(getattr(base, group), **changed) for group, changed in groups.items() if group}
        return replace(base, **groups.get("", {}), **parts)
    except InputError as error:
        raise ConfError(f"{_location(settings, str(error))} has an invalid value: {error}") from error


def _location(settings: _ConfValues, message: str) -> str:
    """Return line and key of the first flag in a message; the path if no key sets such a flag."""
    # Errors of the config name flags; the user of a .conf file knows its keys.
    flags = {
        f"--{field.rpartition('.')[2].replace('_', '-')} ": name
        for name in settings.entries
        if (field := ALL_KEYS[name].field) is not None
    }
    named = [flag for flag in flags if flag in message]
    return settings.where(flags[min(named, key=message.index)]) if named else str(settings.path)


def _notes(conf: Conf, settings: _ConfValues, config: NormalsConfig) -> list[str]:
    notes = [
        f"{conf.path}:{line}: {name} is given again below, and the later value is used"
        for name, line in conf.replaced.items()
    ]
    idle = [name for name in settings.entries if ALL_KEYS[name].idle]
    published = [name for name in idle if settings.entries[name].value in ALL_KEYS[name].published]
    if published:
        notes.append(f"{conf.path}: without effect: {'; '.join(_reasons(published))}")
    # The user chose these values, and may expect an effect.
    notes += [
        f"{settings.where(name)} = {format_value(settings.entries[name].value)} has no effect: {ALL_KEYS[name].why}"
        for name in idle
        if name not in published
    ]
    changed = [
        f"{name} = {format_value(settings.entries[name].value)}"
        for name, usual in _CHANGED.items()
        if name in settings.entries
        and settings.entries[name].value != usual
        and (name != "general.clock_wise" or config.poses.pose_start == "ring")
    ]
    if changed:
        notes.append(f"{conf.path}: used as written, while PMNI ignores the value: {', '.join(changed)}")
    rays = config.rays
    if settings.has("train.batch_size") and rays.warm_up_rays and rays.warm_up_rays < (rays.rays_per_view or 0):
        notes.append(
            f"{settings.where('train.batch_size')} applies from iteration {rays.warm_up_rays_until} on: before, a step "
            f"samples {rays.warm_up_rays} rays of every view; --warm-up-rays None takes the whole batch from the start"
        )
    if settings.has("model.sdf_network.d_hidden") and not settings.has(*ENCODING):
        notes.append(
            f"{conf.path} has no model.encoding: PMNI then trains a plain network, fieldwatch keeps the hash "
            "encoding of the preset (model.sdf_network.weight_norm and input_concat are always on)"
        )
    return notes


def _reasons(names: list[str]) -> list[str]:
    """Return lists of keys that have no effect, grouped by reason."""
    by_reason: dict[str, list[str]] = {}
    for name in names:
        by_reason.setdefault(ALL_KEYS[name].why, []).append(name)
    return [f"{', '.join(names)} ({why})" for why, names in by_reason.items()]


def _object_notes(conf: Conf, object_name: str | None) -> list[str]:
    if object_name is None or "CASE_NAME" in conf.path.read_text(encoding="utf-8-sig"):
        return []
    return [f"--obj-name {object_name} has no effect: {conf.path} has no CASE_NAME"]
