#!/usr/bin/env bash
# From photos to a textured mesh and its distance to the true surface: the built-in scene, in a few minutes on two cores.
# Usage: examples/photos_to_mesh.sh [RUN]      (RUN: output folder, default runs/photos_to_mesh)
# For your own photos: the same, with `train splats --data FOLDER`, and `mesh evaluate` only if you have the true mesh.
set -euo pipefail
run=${1:-runs/photos_to_mesh}
fieldwatch=$(dirname "$0")/../.venv/bin/fieldwatch
[ -x "$fieldwatch" ] || fieldwatch=fieldwatch

"$fieldwatch" train splats --out "$run"
# With the background, because refinement compares whole photos; for the object alone, leave it and the refinement out.
"$fieldwatch" mesh extract "$run" --triangles 40000 --background
"$fieldwatch" mesh refine "$run" "$run/mesh/level0.3.ply" --preset short --out "$run/refined"
"$fieldwatch" mesh texture "$run" "$run/refined/products/refined_mesh.ply" --out "$run/textured"
"$fieldwatch" mesh quality "$run/textured/refined_mesh.obj" --open
"$fieldwatch" mesh evaluate "$run/refined/products/refined_mesh.ply" --gt built-in --visible-from "$run" --out "$run/evaluated"
"$fieldwatch" mesh view "$run/textured/refined_mesh.glb" -o "$run/mesh.html"
