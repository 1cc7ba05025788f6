"""A pipeline of its own for fieldwatch; this file names the code, and imports none of it."""

from fieldwatch.pipeline import Pipeline

TINY = Pipeline(
    name="tiny",
    about="fit a coordinate network to a built-in picture",
    help="Fit a network to a picture of rings.\n\nExample: fieldwatch train tiny --steps 500 --out runs/rings",
    config="tiny_pipeline.fit:Config",
    prepare="tiny_pipeline.fit:prepare",
    evaluate="tiny_pipeline.fit:evaluate",
    inputs=(),
)
