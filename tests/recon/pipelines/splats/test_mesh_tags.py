"""Metrics of test meshes: exactly the declared metrics are measured."""

import numpy as np

from fieldwatch.recon.mesh import Triangles, gaussian_fit, mesh_quality
from fieldwatch.recon.pipelines.splats.mesh_tags import MESH
from fieldwatch.recon.pipelines.splats.tags import SPLATS_METRICS

TETRAHEDRON = Triangles(
    vertices=np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]]),
    faces=np.array([[0, 2, 1], [0, 1, 3], [0, 3, 2], [1, 2, 3]]),
)


def test_declared_tags_are_those_that_are_measured():
    measured = mesh_quality(TETRAHEDRON).metrics | gaussian_fit(TETRAHEDRON, np.full((1, 3), 0.1))
    declared = [metric.name for metric in MESH]
    assert set(declared) == set(measured)
    assert len(declared) == len(set(declared))


def test_splats_runs_declare_them_all():
    inside = {metric.name for metric in SPLATS_METRICS if metric.name.startswith("Mesh/")}
    assert inside == {metric.name for metric in MESH}
    assert all(metric.meaning and metric.kind == "scalar" for metric in MESH)
