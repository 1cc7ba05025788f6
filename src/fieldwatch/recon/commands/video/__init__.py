"""Neural video as a pipeline of the toolkit."""

from fieldwatch.pipeline import Command, DataKind, Pipeline

HELP = """Train a neural video on a folder of frames or a video file; without --data, on a built-in clip.

Example: fieldwatch train video --data frames/ --data-split 7_7_8 --preset small --out runs/mine

The flags of the original scripts (--data-path, --vid, --embed, --fc-dim, --fc-hw, --dec-strds, --reduce,
--lower-width, --lr-type, --clip-loss-weight, ...) work; see also `fieldwatch migrate`.
"""

_MAIN_FLAGS = {
    "data and output": ("data", "start", "count", "stride", "crop", "resize", "data_split"),
    "method and quality": (
        "model", "modelsize", "rows", "columns", "loss", "clip_loss_weight", "between_weight", "between_motion",
        "teacher", "batch", "lr",
    ),
    "run length and evaluation": ("epochs", "eval_freq"),
    "saving and resuming": ("checkpoint_epochs", "keep_last", "keep_best"),
    "machine": ("device", "threads", "amp", "compile", "cuda_graphs", "seed"),
}  # fmt: skip
"""Fields that `fieldwatch train video --help` lists; the others are in ``--help-all``."""

VIDEO = Pipeline(
    name="video",
    about="train a neural video on frames or a video file (no data: a built-in clip)",
    help=HELP,
    config="fieldwatch.recon.pipelines.video:VideoConfig",
    presets="fieldwatch.recon.pipelines.video:PRESETS",
    prepare="fieldwatch.recon.commands.video.job:prepare",
    command_line="fieldwatch.recon.commands.migrate.video:read",
    main_flags=_MAIN_FLAGS,
    longer="--epochs",
    check_resumable="fieldwatch.recon.pipelines.video:check_teacher",
    machine_check="fieldwatch.recon.commands.gpu:check_gpu",
    evaluate="fieldwatch.recon.commands.video.evaluate:evaluate",
    evaluate_options="fieldwatch.recon.commands.video.options:EvaluateOptions",
    exports=("bitstream",),
    export="fieldwatch.recon.commands.video.export:export_video",
    export_options="fieldwatch.recon.commands.video.options:ExportOptions",
    rules="fieldwatch.recon.pipelines.video:VIDEO_RULES",
    metrics="fieldwatch.recon.pipelines.video:VIDEO_METRICS",
    measured=("Eval/", "Reference/"),
    quality="fieldwatch.recon.commands.video.job:quality_table",
    commands={
        "infer video": Command(
            run="fieldwatch.recon.commands.video.infer:run",
            flags="fieldwatch.recon.commands.video.flags:InferVideoFlags",
            about="render frames, patches or the whole clip; search it by text or image",
            takes_run=True,
        ),
    },
    data=(
        DataKind(
            name="frames",
            title="frames",
            wanted="frames (pictures, or a video file)",
            recognize="fieldwatch.recon.commands.video.recognize:is_frames",
            report="fieldwatch.recon.commands.video.doctor_frames:frames_report",
        ),
    ),
    libraries=(
        ("av", "video files, EXR, 16-bit PNG", "pip install av"),
        ("transformers", "CLIP as a teacher and for search", "pip install 'fieldwatch[clip]'"),
    ),
)
