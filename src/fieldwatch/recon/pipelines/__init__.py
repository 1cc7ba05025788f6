"""Pipelines: each takes data to a product, with the toolkit as any stranger would use it."""
