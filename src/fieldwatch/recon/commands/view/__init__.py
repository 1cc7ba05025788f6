"""``fieldwatch view``: Gaussians, meshes and runs, on a page that opens offline or in a live window."""
