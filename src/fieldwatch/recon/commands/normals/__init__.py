"""Surfaces from normal maps as a pipeline of the toolkit."""

from fieldwatch.pipeline import Command, DataKind, Pipeline

HELP = """Train a surface on normal maps with masks and cameras; without --data, on a built-in object.

Example: fieldwatch train normals --data diligent_mv/bear --preset cpu --out runs/bear

Example: fieldwatch train normals --data my_object --preset poses --pose-start ring

Example: fieldwatch train normals --steps 2000 --stages "shape@0 mask=1 eikonal=0.1" "normals@10000+5000 normal=1
mask=1 eikonal=0.1"

--data is a folder of normals (and masks) with cameras_sphere.npz (DiLiGenT-MV, PMNI, SuperNormal), cameras.npz
(NeuS, MonoSDF), transforms.json (Blender, Nerfstudio) or COLMAP's sparse/0; axes, space, channels and pixel centers
are found from the data. `fieldwatch doctor --data FOLDER` checks it. Iterations in the settings are nominal, out of
--nominal: --steps alone makes the whole schedule shorter or longer.

The run folder also holds meshes_validation/, normals/, depths/, poses/ and products/. The .conf files and flags of
PMNI's script (--conf, --obj_name, --is_continue, --gpu 0) work; see also `fieldwatch migrate`.
"""

_MAIN_FLAGS = {
    "data and output": (
        "data", "conf", "normals", "masks", "axes", "held_out", "longer_side",
    ),
    "method and quality": (
        "stages", "pose_start", "learn_rotation", "learn_translation",
        "finest_resolution", "lr",
    ),
    "run length and evaluation": ("steps", "evaluate_at", "mesh_resolution", "turntable"),
    "saving and resuming": ("checkpoint_interval", "keep_last"),
    "machine": ("device", "threads", "seed"),
}  # fmt: skip
"""Fields that `fieldwatch train normals --help` lists; the others are in ``--help-all``."""

NORMALS = Pipeline(
    name="normals",
    about="train a surface on normal maps, with optimized poses (no data: built-in object)",
    help=HELP,
    config="fieldwatch.recon.pipelines.normals:NormalsConfig",
    presets="fieldwatch.recon.pipelines.normals:PRESETS",
    former_presets={"seeds": "pmni"},
    prepare="fieldwatch.recon.commands.normals.job:prepare",
    command_line="fieldwatch.recon.commands.migrate.normals:read",
    flags="fieldwatch.recon.commands.normals.options:TrainOptions",
    main_flags=_MAIN_FLAGS,
    inputs=("data", "conf"),
    evaluate="fieldwatch.recon.commands.normals.evaluate:evaluate",
    exports=("ply", "glb", "obj", "poses", "maps"),
    export="fieldwatch.recon.commands.normals.export:export_normals",
    export_options="fieldwatch.recon.commands.normals.options:MeshOptions",
    rank="fieldwatch.recon.commands.normals.rank:rank",
    rank_options="fieldwatch.recon.commands.normals.options:RankOptions",
    rules="fieldwatch.recon.pipelines.normals:NORMALS_RULES",
    metrics="fieldwatch.recon.pipelines.normals:NORMALS_METRICS",
    measured=("Eval/",),
    quality="fieldwatch.recon.commands.normals.job:quality_table",
    commands={
        "infer normals": Command(
            run="fieldwatch.recon.commands.normals.infer:run",
            flags="fieldwatch.recon.commands.normals.flags:InferNormalsFlags",
            about="register a new normal map to a trained surface: pose, depth, completed normals",
            takes_run=True,
        ),
        "data integrate-normals": Command(
            run="fieldwatch.recon.commands.normals.integrate_normals:run",
            flags="fieldwatch.recon.commands.normals.flags:IntegrateNormalsFlags",
            about="integrate the normal map of one view (photometric stereo) to depth and a mesh",
        ),
        "data render-normals": Command(
            run="fieldwatch.recon.commands.normals.render_normals:run",
            flags="fieldwatch.recon.commands.normals.flags:RenderNormalsFlags",
            about="render normal maps of a mesh: exact normals, masks, depth, cameras on a ring",
        ),
    },
    data=(
        DataKind(
            name="normals",
            title="normal maps",
            wanted="normal maps (cameras_sphere.npz with normal_camera_space_GT/ and mask/; or normals/, masks/ and "
            "COLMAP's sparse/0/ or transforms.json; or normal_map.png and K.txt of a single view)",
            recognize="fieldwatch.recon.commands.normals.recognize:is_normal_maps",
            report="fieldwatch.recon.commands.normals.doctor_normals:normals_report",
            options="fieldwatch.recon.commands.normals.options:NormalOptions",
        ),
    ),
    machine_check="fieldwatch.recon.commands.kernels:check_kernels",
)
