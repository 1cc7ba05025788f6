"""Neural video as a pipeline of the toolkit."""

from fieldwatch.pipeline import Command, DataKind, Pipeline

HELP = """Train a neural video on a folder of frames or a video file; without --data, on a built-in clip.

Example: fieldwatch train video --data frames/ --data-split 7_7_8 --preset small --out runs/mine

Flags of the original scripts (--data-path, --vid, --embed, --fc-dim, --fc-hw, --dec-strds, --reduce, --lower-width,
--lr-type, --clip-loss-weight, ...) work.
"""

VIDEO = Pipeline(
    name="video",
    about="train a neural video on frames or a video file (no data: a built-in clip)",
    help=HELP,
    config="fieldwatch.recon.pipelines.video:VideoConfig",
    presets="fieldwatch.recon.pipelines.video:PRESETS",
    prepare="fieldwatch.recon.commands.video.front:prepare",
    command_line="fieldwatch.recon.commands.video.command_line:read",
    longer="--epochs",
    check_resumable="fieldwatch.recon.pipelines.video:check_teacher",
    evaluate="fieldwatch.recon.commands.video.evaluate:evaluate",
    evaluate_options="fieldwatch.recon.commands.video.options:EvaluateOptions",
    exports=("bitstream",),
    export="fieldwatch.recon.commands.video.export:export_video",
    export_options="fieldwatch.recon.commands.video.options:ExportOptions",
    rules="fieldwatch.recon.pipelines.video:VIDEO_RULES",
    metrics="fieldwatch.recon.pipelines.video:VIDEO_METRICS",
    measured=("Eval/", "Reference/"),
    quality="fieldwatch.recon.commands.video.front:quality_table",
    commands={
        "infer video": Command(
            run="fieldwatch.recon.commands.video.infer:run",
            about="draw frames, patches or the whole clip; search it by text or image",
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
