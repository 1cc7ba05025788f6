"""What runs in a process of its own for `open3d_poisson`: it needs Python 3.8, numpy and Open3D, nothing of ours."""

import sys

import numpy as np

NO_OPEN3D = 64  # the status that says so


def main() -> None:
    """Read points from the file that is named first, write the mesh to the second; the octree's depth is third."""
    try:
        import open3d  # type: ignore[import-not-found]  # noqa: PLC0415 (optional)
    except ImportError as error:
        sys.stderr.write(f"{error}\n")
        sys.exit(NO_OPEN3D)
    request, answer, depth = sys.argv[1:4]
    with np.load(request) as request_arrays:
        cloud = open3d.geometry.PointCloud(open3d.utility.Vector3dVector(request_arrays["points"]))
        cloud.normals = open3d.utility.Vector3dVector(request_arrays["normals"])
    mesh, _ = open3d.geometry.TriangleMesh.create_from_point_cloud_poisson(cloud, depth=int(depth), n_threads=1)
    np.savez(answer, vertices=np.asarray(mesh.vertices), faces=np.asarray(mesh.triangles))


if __name__ == "__main__":
    main()
