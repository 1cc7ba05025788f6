"""Products of normals trainings made small: for tests of what comes before them."""

from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from unittest import mock


@contextmanager
def small_products() -> Iterator[None]:
    """Measure meshes at few points, and draw them small."""
    normals = "fieldwatch.recon.pipelines.normals"
    evaluation = import_module(f"{normals}.evaluate")  # its package exports a function of this name
    products = import_module(f"{normals}.products")
    with mock.patch.object(evaluation, "SAMPLES", 500), mock.patch.object(products, "SIZE", 48):
        yield
