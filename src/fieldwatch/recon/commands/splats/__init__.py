"""Gaussian splats, and meshes refined with them, as pipelines of the toolkit."""

from fieldwatch.pipeline import Command, DataKind, Pipeline

HELP = """Train Gaussians on photos with cameras so that they lie on the surface; without --data, on a built-in scene.

Example: fieldwatch train splats --data colmap_scene/ --preset cpu --out runs/mine

Example: fieldwatch train splats -c 3dgs_output/ -r dn_consistency --test-iterations 9000 15000

--data is a COLMAP folder (images/ and sparse/0/), one with transforms.json, or a film or photos, whose cameras it finds
first; -c starts from trained Gaussians. Iterations count as in the papers: densification until 7000, then the surface
terms of --regularization, pruning at 9000.

The run folder also holds evaluations/, 3dgs/ (the model at 7000, as 3DGS writes it), and in products/ the Gaussians as
PLY, SuGaR's .pt, renders, depth, normals and a turntable. The flags of the original scripts (-s, -c, -i, -r,
--coarse_iterations, --eval True, ...) work; see also `fieldwatch migrate`.
"""

_MESH_COMMANDS = {
    "mesh extract": Command(
        run="fieldwatch.recon.commands.splats.mesh_extract:run",
        flags="fieldwatch.recon.commands.splats.flags:ExtractFlags",
        about="extract a mesh from a splats run: surface points, Poisson or fusion, cleaning",
        takes_run=True,
    ),
    "mesh refine": Command(
        run="fieldwatch.recon.commands.splats.mesh_refine:run",
        flags="fieldwatch.recon.commands.splats.flags:refine_flags",
        about="refine a mesh with Gaussians bound to its triangles, on the run's photos",
        takes_run=True,
    ),
    "mesh texture": Command(
        run="fieldwatch.recon.commands.mesh.texture:run",
        flags="fieldwatch.recon.commands.mesh.flags:TextureFlags",
        about="bake a texture from the photos: OBJ with MTL and PNG, and GLB",
        takes_run=True,
    ),
    "mesh quality": Command(
        run="fieldwatch.recon.commands.mesh.quality:run",
        flags="fieldwatch.recon.commands.mesh.flags:QualityFlags",
        about="measure a mesh: 37 figures, a grade and its reasons",
    ),
    "mesh evaluate": Command(
        run="fieldwatch.recon.commands.mesh.evaluate:run",
        flags="fieldwatch.recon.commands.mesh.flags:MeshComparisonFlags",
        about="compare a mesh with the ground truth: Chamfer, F-score, normals, error picture",
    ),
    "mesh view": Command(
        run="fieldwatch.recon.commands.mesh.view:run",
        flags="fieldwatch.recon.commands.mesh.flags:ViewFlags",
        about="show a mesh: stills, a turntable film, and a page that opens offline",
    ),
}

_MAIN_FLAGS = {
    "data and output": ("data", "checkpoint_path", "masks", "longer_side", "held_out", "background"),
    "method and quality": ("regularization", "growth", "growth_cap", "degree", "exposure"),
    "run length and evaluation": ("coarse_iterations", "schedule_scale", "test_iterations", "turntable"),
    "saving and resuming": ("checkpoint_interval", "keep_last"),
    "machine": ("device", "threads", "seed"),
}
"""Fields that `fieldwatch train splats --help` lists; the others are in ``--help-all``."""

SPLATS = Pipeline(
    name="splats",
    about="train Gaussians on the surface, from photos (no data: a built-in scene)",
    help=HELP,
    config="fieldwatch.recon.pipelines.splats:SplatsConfig",
    presets="fieldwatch.recon.pipelines.splats:PRESETS",
    prepare="fieldwatch.recon.commands.splats.job:prepare",
    convert="fieldwatch.recon.commands.splats.missing_cameras:convert",
    command_line="fieldwatch.recon.commands.migrate.splats:read",
    main_flags=_MAIN_FLAGS,
    inputs=("data", "images", "masks", "checkpoint-path"),
    longer="--coarse-iterations",
    evaluate="fieldwatch.recon.commands.splats.evaluate:evaluate_run",
    exports=("ply", "compressed-ply", "spz", "sog", "splat", "3dgs", "pt"),
    export="fieldwatch.recon.commands.splats.export:export_splats",
    rank="fieldwatch.recon.commands.splats.rank:rank",
    rules="fieldwatch.recon.pipelines.splats:SPLATS_RULES",
    metrics="fieldwatch.recon.pipelines.splats:SPLATS_METRICS",
    measured=("Test/", "Surface/"),
    quality="fieldwatch.recon.commands.splats.job:quality_table",
    population="Gaussians",
    commands={
        "infer splats": Command(
            run="fieldwatch.recon.commands.splats.infer:run",
            flags="fieldwatch.recon.commands.splats.flags:InferSplatsFlags",
            about="render a trained scene: views of its photos, new cameras, paths; depth, normals",
            takes_run=True,
        ),
        "view": Command(
            run="fieldwatch.recon.commands.view.command:run",
            flags="fieldwatch.recon.commands.view.flags:SceneFlags",
            about="show Gaussians, a mesh or a run: in a window, or on a page that opens offline",
            takes_run=True,
        ),
        "data photos": Command(
            run="fieldwatch.recon.commands.capture.photos:run",
            flags="fieldwatch.recon.commands.capture.flags:PhotosFlags",
            about="find the cameras of a film or a folder of photos: the input of train splats",
        ),
        "reconstruct": Command(
            run="fieldwatch.recon.commands.reconstruct.command:run",
            flags="fieldwatch.recon.commands.reconstruct.flags:ReconstructFlags",
            about="from a film, photos or normal maps to Gaussians and a textured mesh, in one command",
        ),
        "convert splats": Command(
            run="fieldwatch.recon.commands.splats.convert:run",
            flags="fieldwatch.recon.commands.splats.flags:ConvertSplatsFlags",
            about="write Gaussians in another format: .ply, compressed .ply, .spz, .sog, .splat; with the loss",
        ),
        **_MESH_COMMANDS,
        "migrate": Command(
            run="fieldwatch.recon.commands.migrate.command:run",
            flags="fieldwatch.recon.commands.migrate.flags:MigrateFlags",
            about="translate a command line or .conf file of SuGaR, 3DGS, PMNI or HNeRV",
        ),
    },
    data=(
        DataKind(
            name="photos",
            title="photos with cameras",
            wanted=(
                "photos with cameras (images/ and sparse/0/; transforms.json; or an export of Metashape, RealityScan, "
                "Polycam or Record3D)"
            ),
            recognize="fieldwatch.recon.commands.splats.recognize:is_photos",
            report="fieldwatch.recon.commands.splats.doctor_photos:photos_report",
        ),
        DataKind(
            name="gaussians",
            title="Gaussians",
            wanted="Gaussians (.ply, .spz, .sog, .splat, .ksplat, or point_cloud/iteration_N/)",
            recognize="fieldwatch.recon.commands.splats.recognize:is_gaussians",
            report="fieldwatch.recon.commands.splats.doctor_gaussians:gaussians_report",
        ),
    ),
    machine_check="fieldwatch.recon.commands.kernels:check_kernels",
    libraries=(
        ("gsplat", "splats on a GPU", "pip install 'fieldwatch[gpu]'"),
        ("xatlas", "texture atlases", "pip install xatlas"),
    ),
)

REFINED = Pipeline(
    name="refined",
    about="a mesh refined with Gaussians bound to its triangles",
    trained_by="mesh refine",
    config="fieldwatch.recon.pipelines.splats:RefineConfig",
    prepare="fieldwatch.recon.commands.splats.refined_job:prepare",
    longer="--iterations",
    check_resumable="fieldwatch.recon.commands.splats.refined_job:check_resumable",
    evaluate="fieldwatch.recon.commands.splats.evaluate:evaluate_run",
    exports=("ply", "compressed-ply", "spz", "sog", "splat", "3dgs", "pt"),
    export="fieldwatch.recon.commands.splats.export:export_splats",
    rules="fieldwatch.recon.pipelines.splats:SPLATS_RULES",
    metrics="fieldwatch.recon.pipelines.splats:REFINED_METRICS",
    measured=("Test/", "Surface/"),
    quality="fieldwatch.recon.commands.splats.job:quality_table",
    population="Gaussians",
    # LPIPS is measured on splats as well; their own check is that of the kernels.
    machine_check="fieldwatch.recon.commands.splats.doctor_lpips:check_lpips",
)
