"""PMNI's .conf files: the published ones read unchanged, every key acts, is noted or is refused, none in silence."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from fieldwatch.recon.commands.migrate.pmni import read_pmni
from fieldwatch.recon.commands.migrate.pmni_hocon import ConfError
from fieldwatch.recon.commands.migrate.pmni_keys import COUNT, KEYS, NUMBER, TEXT, TEXTS, TRUTH, WHOLE, WHOLES
from fieldwatch.recon.pipelines.normals import PRESETS

BEAR = Path(__file__).parents[4] / "examples" / "diligent_bear.conf"
BASE = PRESETS["pmni"]()
# What the other published files say otherwise than the bear's.
AUTHORS = {
    "train.learning_rate": "5e-4",
    "train.batch_size": "4096",
    "model.encoding.n_levels": "14",
    "model.encoding.log2_hashmap_size": "19",
    "val.save_freq": "500000",
    "val.val_normal_freq": "5000",
    "val.val_mesh_freq": "1000",
    "val.report_freq": "5",
    "val.eval_metric_freq": "1000",
    "val.visual_pose_freq": "500",
}
DILIGENT = AUTHORS | {"general.clock_wise": "False"}
BALL = AUTHORS | {
    "general.pose_init_radius": "1.5",
    "general.pose_init_angle": "0",
    "dataset.data_dir": "./data/special_normals/CASE_NAME",
    "dataset.normal_dir": "normal_camera_space_sdmunips",
    "dataset.depth_init_scale": "1.5",
    "train.depth_weight_s1": "1",
    "train.mask_weight_s1": "1",
    "train.mask_weight_s2": "3",
    "train.mask_weight_s3": "3",
}
CYLINDER = BALL | {"general.pose_init_radius": "3", "dataset.depth_init_scale": "2.5"}
OWN_OBJECTS = AUTHORS | {
    "general.pose_init_radius": "3.9",
    "dataset.data_dir": "./data/own_objects/CASE_NAME",
    "dataset.normal_dir": "normal_camera_space_sdmunips",
    "dataset.depth_init_scale": "3.5",
    "train.depth_weight_s1": "0",
    "train.mask_weight_s2": "7",
    "train.mask_weight_s3": "7",
}
WEIGHTS = {"normal": 0.5, "depth": 0.1, "pc": 0, "mask": 1.0, "eikonal": 0.1, "sdf": 0, "con": 0}
MINIMAL = {
    "general.base_exp_dir": "./exp/diligent_mv/CASE_NAME_minimal",
    "general.clock_wise": "False",
    "dataset.exclude_views": str(list(range(5, 20))),
    "train.change_posenet_epoch": "99999",
    "train.add_normal_loss_epoch": "0",
    "train.pose_lr": "0",
    "train.scale_lr": "0",
    "train.end_iter": "50  # a smoke test",
    "train.warm_up_end": "10",
    "train.batch_size": "64",
    "train.pc_ratio": "4",
    **{f"train.{term}_weight_s{stage}": str(weight) for stage in (1, 2, 3) for term, weight in WEIGHTS.items()},
    "train.depth_weight_s3": "0.0",
    "val.save_freq": "50",
    "val.val_normal_freq": "1000",
    "val.val_normal_resolution_level": "4",
    "val.val_mesh_freq": "50",
    "val.val_mesh_res": "64",
    "val.report_freq": "10",
    "val.eval_metric_freq": "1000",
    "val.visual_pose_freq": "1000",
    "model.sdf_network.d_hidden": "32",
    "model.sdf_network.n_layers": "2",
    "model.sdf_network.weight_norm": "False",
    "model.sdf_network.input_concat": "False",
    "model.ray_marching.start_step_size": "2e-2",
    "model.ray_marching.occ_resolution": "32",
    "model.ray_marching.occ_update_freq": "16",
    "model.LearnScale.learn_scale": "False",
    **{name: None for name in KEYS if name.startswith("model.encoding.")},
}
FILES = {"diligent": DILIGENT, "ball": BALL, "cylinder": CYLINDER, "own_objects": OWN_OBJECTS, "minimal": MINIMAL}


ONE_LINE = BEAR.read_text(encoding="utf-8").replace("[\n        ./,\n        ./models\n    ]", "[./, ./models]")
"""The bear's file with every list on one line."""


def rewritten(changes):
    """The bear's file with other values; None takes a line out."""
    lines = []
    blocks = []
    left = dict(changes)
    for line in ONE_LINE.splitlines():
        bare = line.split("#")[0].strip()
        if bare.endswith("{"):
            blocks.append(bare[:-1].strip())
        elif bare == "}":
            blocks.pop()
        name = ".".join([*blocks, bare.split("=")[0].strip()]) if "=" in bare else ""
        value = left.pop(name, line)
        if value is not None:
            lines.append(line if value is line else f"    {name.rpartition('.')[2]} = {value}")
    return "\n".join([*lines, *(f"{name} = {value}" for name, value in left.items())]) + "\n"


@pytest.fixture
def conf(tmp_path):
    """Read the bear's file with some changes."""

    def read(changes=(), base=BASE, object_name="bear"):
        path = tmp_path / "a.conf"
        path.write_text(rewritten(dict(changes)), encoding="utf-8")
        return read_pmni(path, base, object_name=object_name)

    return read


def test_the_bears_file():
    found = read_pmni(BEAR, BASE, object_name="bear")
    config = found.config
    sdf = found.config.sdf
    rendering = found.config.rendering
    assert found.out == Path("exp/diligent_mv/bear")
    assert (config.rays.rays_per_view, config.rays.views_per_step) == (512, 0)
    assert (config.data, config.normals) == (Path("data/diligent_mv_normals/bear"), "normal_camera_space_GT")
    assert (config.depth, config.exclude) == ("integration/depth", ())
    assert config.stages == (
        "s1@0 depth=0.1 mask=3 eikonal=1",
        "s2@10000 normal=1 depth=1 mask=5 eikonal=1",
        "s3@20000 normal=1 mask=5 eikonal=1",
    )
    assert (config.steps, config.nominal, config.rates.warm_up) == (30_000, 30_000, 500)
    assert (config.rates.lr, config.rates.lr_table, config.rates.last_share) == (1e-3, None, 0.05)
    assert (config.rates.lr_poses, config.rates.lr_poses_late, config.rates.poses_late_from) == (1e-3, 5e-4, 10_000)
    assert (sdf.levels, sdf.base_resolution, sdf.finest_resolution, sdf.table_bits) == (8, 32, 223, 15)
    assert (sdf.features_per_level, sdf.hidden, sdf.layers, sdf.radius) == (2, 64, 1, 0.6)
    assert (sdf.first_levels, sdf.levels_by) == (1, 7000)
    assert (rendering.first_step, rendering.last_step, rendering.gradient_method) == (1e-2, 1e-3, "ad")
    assert (rendering.grid_threshold, rendering.grid_sharpness) == (0.1, 80)
    assert (rendering.grid_resolution, rendering.grid_every, rendering.patch) == (128, 8, 1)
    assert (rendering.sharpness, rendering.first_sharpness) == ("learned", pytest.approx(148.413159))
    assert (config.poses.pose_start, config.poses.learned) == ("dataset", False)
    assert (config.checkpoint_interval, config.poses_at) == (5000, 5000)
    assert (config.evaluate_at, config.pictures_at) == (10_000, 10_000)
    assert (config.mesh_at, config.mesh_resolution) == (10_000, 512)


@pytest.mark.parametrize("name", FILES)
def test_the_other_published_files_read_unchanged(conf, name):
    found = conf(FILES[name], object_name=name)
    assert str(found.out).startswith("exp/diligent_mv/")
    assert name in str(found.config.data)
    assert "without effect" in found.notes[0]


def test_what_they_say_otherwise(conf):
    ball, own, minimal, diligent = (conf(FILES[name]) for name in ("ball", "own_objects", "minimal", "diligent"))
    assert (diligent.config.sdf.levels, diligent.config.sdf.finest_resolution) == (14, 1177)
    assert diligent.config.sdf.levels_by == 13_000
    assert (ball.config.poses.ring_radius, ball.config.poses.ring_angle) == (1.5, 0)
    assert ball.config.stages[0] == "s1@0 depth=1 mask=1 eikonal=1"
    assert own.config.stages[0] == "s1@0 mask=3 eikonal=1"
    assert minimal.config.steps == 50
    assert minimal.config.exclude == tuple(range(5, 20))
    assert (minimal.config.sdf.hidden, minimal.config.sdf.layers, minimal.config.terms.point_share) == (32, 2, 0.25)
    assert minimal.config.sdf.levels == BASE.sdf.levels
    assert any("has no model.encoding" in note for note in minimal.notes)
    assert any("dataset.exclude_views = [5, 6" in note for note in minimal.notes)


BESIDE = {
    "model.LearnPose.learn_pose": {"model.LearnPose.learn_R": "True"},
    "train.add_normal_loss_epoch": {"train.normal_weight_s1": "1"},
}
"""Keys that act only beside another one."""
OTHERS = {
    NUMBER: lambda value: value * 1.5 + 0.01,
    WHOLE: lambda value: value + 1,
    COUNT: lambda value: value + 1,
    TRUTH: lambda value: not value,
    TEXT: lambda value: f"{value}_other",
    WHOLES: lambda value: [*value, 7],
    TEXTS: lambda value: f"[{', '.join([*value, './other'])}]",
}


def values_written():
    """Every value of the bear's file, by key."""
    from_bear = {}
    blocks = []
    for line in ONE_LINE.splitlines():
        bare = line.split("#")[0].strip().rstrip(",")
        if bare.endswith("{"):
            blocks.append(bare[:-1].strip())
        elif bare == "}":
            blocks.pop()
        elif "=" in bare:
            name, text = (part.strip() for part in bare.split("=", 1))
            from_bear[".".join([*blocks, name])] = text
    return {name: typed(KEYS[name].kind, text) for name, text in from_bear.items()}


def typed(kind, text):
    if kind is TRUTH:
        return text == "True"
    if kind in (WHOLES, TEXTS):
        parts = [part.strip() for part in text.strip("[]").split(",") if part.strip()]
        return [int(part) for part in parts] if kind is WHOLES else parts
    return text if kind is TEXT else float(text) if kind is NUMBER else int(text)


WRITTEN = values_written()
AS_IT_IS = read_pmni(BEAR, BASE, object_name="bear")


def test_the_bears_file_has_every_key():
    assert WRITTEN.keys() == KEYS.keys()
    assert all(name in AS_IT_IS.notes[0] for name, key in KEYS.items() if key.idle)


@pytest.mark.parametrize("name", KEYS)
def test_every_key_acts_is_noted_or_is_refused_at_another_value(conf, name):
    beside = BESIDE.get(name, {})
    before = conf(beside) if beside else AS_IT_IS
    value = WRITTEN[name]
    key = KEYS[name]
    other = OTHERS[key.kind](value)
    if key.idle and other in key.published:
        return
    try:
        after = conf(beside | {name: other})
    except ConfError as refusal:
        assert re.search(rf"a\.conf:\d+: {re.escape(name)}[: ]", str(refusal))  # noqa: PT017  either answer is right
    else:
        acts = (after.config, after.out, after.log_every) != (before.config, before.out, before.log_every)
        noted = [
            note for note in after.notes if re.match(rf".*a\.conf:\d+: {re.escape(name)} = .* has no effect: ", note)
        ]
        assert (acts, len(noted)) == (not key.idle, int(key.idle))
        assert all(key.why in note for note in noted)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("dataset.depth_init_scale", "3.0"),
        ("train.scale_lr", "1e-3"),
        ("train.change_posenet_epoch", "5000"),
        ("val.val_normal_resolution_level", "2"),
        ("model.LearnScale.existscalenet", "False"),
        ("general.recording", "[./, ./models, ./utilities]"),
    ],
)
def test_a_key_without_effect_is_noted_with_its_line_at_any_value(conf, tmp_path, name, value):
    found = conf({name: value})
    assert (found.config, found.out) == (AS_IT_IS.config, AS_IT_IS.out)
    lines = (tmp_path / "a.conf").read_text(encoding="utf-8").splitlines()
    line = next(i for i, text in enumerate(lines, 1) if text.strip() == f"{name.rpartition('.')[2]} = {value}")
    (note,) = [note for note in found.notes if f"a.conf:{line}: {name} = " in note]
    assert KEYS[name].why in note
    assert name not in found.notes[0]


def test_a_folder_that_would_change_the_depth_is_refused(conf):
    with pytest.raises(ConfError, match=r"a\.conf:\d+: dataset.perspective_dir must be integration/perspective here"):
        conf({"dataset.perspective_dir": "better/perspective"})


@pytest.mark.parametrize("steps", [100, 5, 50])
def test_the_interval_of_reports_is_that_of_the_log(conf, steps):
    assert conf({"val.report_freq": str(steps)}).log_every == steps


def test_without_an_interval_of_reports_the_log_has_its_own(conf):
    assert conf({"val.report_freq": None}).log_every is None


def warm_up_notes(found):
    return [note for note in found.notes if "train.batch_size" in note and "--warm-up-rays" in note]


@pytest.mark.parametrize(("batch", "noted"), [("512", True), ("4096", True), ("256", False), ("64", False)])
def test_a_larger_batch_than_that_of_the_warm_up_is_noted(conf, batch, noted):
    found = conf({"train.batch_size": batch})
    assert (found.config.rays.rays_per_view, found.config.rays.warm_up_rays) == (int(batch), 256)
    assert bool(warm_up_notes(found)) == noted
    without = replace(BASE, rays=replace(BASE.rays, warm_up_rays=None))
    assert warm_up_notes(conf({"train.batch_size": batch}, base=without)) == []


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("train.batch_sise", "1", "train.batch_sise is not a key of PMNI's files; did you mean train.batch_size?"),
        ("train.normal_weight", "1", "train.normal_weight is SuperNormal's weight of all iterations"),
        ("train.normal_weigth", "1", "did you mean train.normal_weight_s"),
        ("train.save_freq", "1", "did you mean val.save_freq?"),
        ("general.device", "cpu", "general.device is not a key"),
        ("color", "red", "color is not a key of PMNI's files"),
        ("train.end_iter", "soon", "train.end_iter must be a whole number, 1 or more, got soon"),
        ("train.end_iter", '"30000"', "must be a whole number"),
        ("train.end_iter", "1.5", "train.end_iter must be a whole number, 1 or more, got 1.5"),
        ("train.learning_rate", "True", "train.learning_rate must be a number, such as 1e-3, got True"),
        ("train.learning_rate", "null", "train.learning_rate must be a number, such as 1e-3, got null"),
        ("general.clock_wise", "1", "general.clock_wise must be True or False, got 1"),
        ("dataset.exclude_views", "[a]", "dataset.exclude_views must be a list of whole numbers"),
        ("dataset.data_dir", "3", "dataset.data_dir must be a string, got 3"),
        (
            "general.renderer_class",
            "models.renderer.CPUFallbackRenderer",
            "must be models.renderer.NeuSRenderer here",
        ),
        ("train.use_white_bkgd", "True", "must be False here (normals have no background color)"),
        ("val.report_freq", "0", "val.report_freq must be a whole number, 1 or more, got 0"),
        (
            "model.ray_marching.occ_threshold",
            "0.7",
            "model.ray_marching.occ_threshold has an invalid value: --grid-threshold must be greater than 0",
        ),
        (
            "train.learning_rate",
            "-1",
            "train.learning_rate has an invalid value: --lr must be a finite number above 0, got -1",
        ),
        (
            "train.gradient_method",
            "dfd",
            "train.patch_size has an invalid value: --patch must be odd",
        ),
        ("train.gradient_method", "exact", "must be ad or fd or dfd here"),
        ("train.pc_ratio", "0.5", "train.pc_ratio must be 1 or more (one pixel of N), got 0.5"),
        ("model.variance_network.init_val", "3", "model.variance_network.init_val must be v of s = exp(10 v)"),
        ("model.encoding.per_level_scale", "0.5", "model.encoding.per_level_scale must be a factor"),
    ],
)
def test_one_message_with_file_line_and_key(conf, tmp_path, name, value, said):
    with pytest.raises(ConfError) as refusal:
        conf({name: value})
    message = str(refusal.value)
    assert said in message
    line, last = re.match(rf"{re.escape(str(tmp_path))}/a\.conf:(\d+): (?:\w+\.)*(\w+)", message).groups()
    assert last in (tmp_path / "a.conf").read_text(encoding="utf-8").splitlines()[int(line) - 1]


def test_the_name_of_the_object_is_asked_for(conf):
    with pytest.raises(ConfError, match=r"general.base_exp_dir is .*CASE_NAME: give the object .*--obj-name NAME"):
        conf(object_name=None)
    plain = {"general.base_exp_dir": "exp/x", "dataset.data_dir": "data/x"}
    assert conf(plain, object_name=None).config.data == Path("data/x")
    assert any("--obj-name bear has no effect" in note for note in conf(plain).notes)


def test_poses_start_and_move_as_the_file_says(conf):
    noisy = conf({"dataset.add_pose_noise": "True", "model.LearnPose.learn_R": "True"}).config.poses
    assert (noisy.pose_start, noisy.learn_rotation, noisy.learn_translation) == ("noisy", True, False)
    assert noisy.rotation_noise == pytest.approx(math.degrees(0.1))
    ring = conf({"model.LearnPose.init_pose": "False", "model.LearnPose.learn_t": "True"})
    assert (ring.config.poses.pose_start, ring.config.poses.learn_translation) == ("ring", True)
    assert any("general.clock_wise = True" in note for note in ring.notes)
    with pytest.raises(ConfError, match=r"add_pose_noise.*init_pose"):
        conf({"dataset.add_pose_noise": "True", "model.LearnPose.init_pose": "False"})


@pytest.mark.parametrize("change", [{"train.pose_lr": "0"}, {"model.LearnPose.learn_pose": "False"}])
def test_poses_stand_still_where_nothing_moves_them(conf, change):
    assert not conf({"model.LearnPose.learn_R": "True", **change}).config.poses.learned


def test_normals_are_let_in_where_the_file_says(conf):
    always = {f"train.normal_weight_{stage}": "2" for stage in ("s1", "s2", "s3")}
    assert conf(always | {"train.add_normal_loss_epoch": "12000"}).config.stages == (
        "s1@0 depth=0.1 mask=3 eikonal=1",
        "s2@10000 depth=1 mask=5 eikonal=1",
        "s2-normals@12000 normal=2 depth=1 mask=5 eikonal=1",
        "s3@20000 normal=2 mask=5 eikonal=1",
    )
    assert conf(always | {"train.add_normal_loss_epoch": "0"}).config.stages[0].startswith("s1@0 normal=2")


def test_every_term_has_its_weight(conf):
    stages = conf({"train.pc_weight_s1": "0.25", "train.sdf_weight_s2": "1e-3", "train.con_weight_s3": "2"})
    found = [set(stage.split()[1:]) - {"eikonal=1"} for stage in stages.config.stages]
    assert found == [
        {"depth=0.1", "mask=3", "point_cloud=0.25"},
        {"normal=1", "depth=1", "mask=5", "surface=0.001"},
        {"normal=1", "mask=5", "consistency=2"},
    ]


def test_what_belongs_together_is_given_together(conf):
    for name in ("train.con_weight_s2", "model.encoding.n_levels"):
        with pytest.raises(ConfError, match=f"without {name}"):
            conf({name: None})
    only = {name: None for name in KEYS if "_weight_" in name}
    with pytest.raises(ConfError, match=r"add_normal_loss_epoch.* without weights"):
        conf(only)


def test_a_file_of_supernormal_is_read(tmp_path):
    path = tmp_path / "super.conf"
    path.write_text(
        "dataset { data_dir = ./data/bear, normal_dir = normal_world_space_sdmunips, render_cameras_name = "
        "cameras_sphere.npz }\ntrain { normal_weight = 1.0, eikonal_weight = 0.5, mask_weight = 2, patch_size = 3\n"
        "gradient_method = dfd, batch_size = 2048 }\nval { gradient_method = dfd, val_mesh_res = 1024 }",
        encoding="utf-8",
    )
    config = read_pmni(path, BASE).config
    assert (config.data, config.normals) == (Path("data/bear"), "normal_world_space_sdmunips")
    assert config.stages == ("fit@0 normal=1 mask=2 eikonal=0.5",)
    assert (config.rendering.gradient_method, config.mesh_resolution) == ("dfd", 1024)
    path.write_text("train { normal_weight = 1.0 }", encoding="utf-8")
    with pytest.raises(ConfError, match=r"without train\.mask_weight"):
        read_pmni(path, BASE)


def test_what_the_file_does_not_say_is_as_in_the_preset(tmp_path):
    path = tmp_path / "short.conf"
    path.write_text("train { learning_rate = 2e-3 }", encoding="utf-8")
    base = PRESETS["cpu"]()
    found = read_pmni(path, base)
    assert found.config == replace(base, rates=replace(base.rates, lr=2e-3, lr_table=None))
    assert (found.out, found.notes) == (None, ())
    path.write_text("", encoding="utf-8")
    assert read_pmni(path, base).config == base


def test_a_key_given_twice_is_told(conf):
    found = conf({"train.batch_size": "512\n    batch_size = 256"})
    assert found.config.rays.rays_per_view == 256
    assert any("train.batch_size is given again" in note for note in found.notes)


def test_batches_are_patches_of_every_view(conf):
    patches = {"train.patch_size": "3", "train.gradient_method": "dfd", "train.batch_size": "10"}
    budget = replace(BASE, rays=replace(BASE.rays, rays_per_view=None, sample_budget=1000, views_per_step=2))
    rays = conf(patches, base=budget).config.rays
    assert (rays.rays_per_view, rays.sample_budget, rays.views_per_step) == (90, None, 0)
    assert rays.warm_up_rays == 256 * 9
