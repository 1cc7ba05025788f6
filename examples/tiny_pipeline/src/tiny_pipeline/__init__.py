"""A fieldwatch pipeline in a separate package; this file refers to its code without importing it."""

from fieldwatch.pipeline import Pipeline

TINY = Pipeline(
    name="tiny",
    about="fit a coordinate network to a built-in image",
    help="Fit a network to an image of rings.\n\nExample: fieldwatch train tiny --steps 500 --out runs/rings",
    config="tiny_pipeline.fit:Config",
    prepare="tiny_pipeline.fit:prepare",
    evaluate="tiny_pipeline.fit:evaluate",
    inputs=(),
)
