"""Commands of our pipelines, and the `Pipeline` object by which each of them joins the toolkit's command line.

The toolkit finds these objects as it finds those of any installed package: by the entry points in pyproject.toml.
"""
