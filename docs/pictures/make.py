"""Make the pictures of the README and the docs from finished runs. Each flag makes the pictures of one kind of run.

    fieldwatch train splats --out runs/splats && python docs/pictures/make.py --splats runs/splats
    make demo && python docs/pictures/make.py --video RUN                            # the run folder that it prints
    fieldwatch train normals --preset cpu --steps 1500 --out runs/object
    python docs/pictures/make.py --normals runs/object
    python docs/pictures/make.py --mesh RUN MESH                                     # a splats run, its textured mesh

``--splats`` makes splats.png, watch.svg, and with Debian's Chromium report.png, report_phone.png and tensorboard.png.
mesh.png shows a run of 97 photos of a plush toy, of which data/real/colmap_plush is a part: ``fieldwatch train splats
--preset cpu``, ``fieldwatch mesh extract --no-background --bbox -3 -1.3 1.6 0.9 2.6 5.2``, ``fieldwatch mesh texture``.
"""

import argparse
import io
import re
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from urllib.request import urlopen

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright
from rich.console import Console

from fieldwatch.monitor.watch import Watcher, render_run
from fieldwatch.recon.geometry import Camera, focus_point
from fieldwatch.recon.mesh import MeshRenderer, read_mesh
from fieldwatch.recon.pipelines import normals, splats, video
from fieldwatch.recon.pipelines.video.evaluation_record import worst_frame
from fieldwatch.report.account import account_of
from fieldwatch.report.page import write_page

HERE = Path(__file__).parent
SIDES = 4
"""Cameras in the picture of a mesh."""


def draw_video(run: Path) -> None:
    """Draw the worst held-out frame: truth, prediction, error."""
    stored = video.open_run(run, "last")
    evaluation = video.evaluate(stored.model, stored.scene)
    picture = worst_frame(stored.scene, "held-out", evaluation.sets["val"])
    Image.fromarray(picture).save(HERE / "demo.png")


def draw_splats(run: Path) -> None:
    """Draw color, depth and normals of some held-out views."""
    stored = splats.open_run(run, "last")
    splats.write_geometry(stored.model, stored.scene, HERE / "splats.png")


def apart(cameras: list[Camera]) -> list[Camera]:
    """Return cameras that are far from each other and from the scene, from left to right."""
    distances = [float((camera.position - focus_point(cameras)).norm()) for camera in cameras]
    cameras = [camera for camera, far in zip(cameras, distances, strict=True) if far > np.median(distances)]
    places = np.stack([camera.position.numpy() for camera in cameras])
    chosen = [0]
    while len(chosen) < SIDES:
        chosen.append(int(np.linalg.norm(places[:, None] - places[chosen], axis=2).min(1).argmax()))
    across = places @ cameras[0].world_from_camera[:3, 0].numpy()
    return [cameras[i] for i in sorted(chosen, key=lambda i: across[i])]


def render_mesh(run: Path, mesh: Path) -> None:
    """Draw a mesh from four cameras that are spread over those of the photos: with its colors, and its shape alone."""
    stored = splats.open_run(run, "last")
    cameras = [camera.resized(480, 360) for camera in apart(list(stored.scene.photos.cameras))]
    renderer = MeshRenderer(read_mesh(mesh))
    sheet = [[renderer.render(one, shading=shading) for one in cameras] for shading in ("color", "clay")]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in sheet])).save(HERE / "mesh.png")


def draw_normals(run: Path) -> None:
    """Draw a trained surface above the true one: shape and normals from two views."""
    stored = normals.open_run(run, "last")
    scene = stored.scene
    ours = normals.surface_mesh(stored.model, scene, 256, world=False)
    truth = scene.truth
    cameras = [scene.maps.cameras[at].resized(360, 360) for at in (0, len(scene.maps) // 2)]
    sheet = [
        [MeshRenderer(mesh).render(one, shading=shading) for shading in ("clay", "normals") for one in cameras]
        for mesh in (ours, truth)
    ]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in sheet])).save(HERE / "normals.png")


def draw_tab(run: Path) -> None:
    """Draw TensorBoard's tab "fieldwatch" on a run."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    line = [sys.executable, "-m", "tensorboard.main", "--logdir", str(run), "--port", str(port)]
    board = subprocess.Popen(line)  # noqa: S603  our own interpreter
    try:
        with sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1480, "height": 1040})
            until_it_answers(f"http://localhost:{port}")
            page.goto(f"http://localhost:{port}/#fieldwatch")
            page.frame_locator("iframe").locator("#panel-losses canvas").first.wait_for()
            page.wait_for_timeout(1000)  # until the other canvases are drawn
            page.screenshot(path=HERE / "tensorboard.png")
            browser.close()
    finally:
        board.terminate()
        board.wait()


def draw_watch(run: Path) -> None:
    """Draw the live view of a run in a terminal of 80 x 24."""
    with Watcher(run) as watcher:
        view = watcher.refresh()
    console = Console(record=True, width=80, file=io.StringIO(), force_terminal=True, color_system="truecolor")
    console.print(render_run(view))
    drawing = console.export_svg(title=f"fieldwatch watch {run}")
    # Without fonts from the network.
    (HERE / "watch.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", drawing, flags=re.DOTALL))


def chromium() -> str:
    """Return the path of Chromium."""
    path = shutil.which("chromium")
    if path is None:
        sys.exit("the report and the tab are drawn by Chromium, which is not installed: apt-get install chromium")
    return path


def until_it_answers(address: str) -> None:
    """Wait for a server that is starting."""
    while True:
        try:
            urlopen(address, timeout=30).close()  # noqa: S310  an address of this machine
        except ConnectionRefusedError:
            pass
        except OSError as error:
            if not isinstance(getattr(error, "reason", None), ConnectionRefusedError):
                raise
        else:
            return


def draw_report(run: Path) -> None:
    """Draw the report of a run on a screen and on a phone."""
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        write_page(account_of(run), path)
        browser = playwright.chromium.launch(executable_path=chromium(), args=["--no-sandbox"])
        for name, (width, height), panel in (
            ("report", (1280, 1180), "verdict"),
            ("report_phone", (390, 844), "panel-losses"),
        ):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-state=drawn]")
            page.evaluate("(panel) => panel === 'verdict' || document.getElementById(panel).scrollIntoView()", panel)
            page.wait_for_timeout(500)  # until the canvases are drawn
            page.screenshot(path=HERE / f"{name}.png")
        browser.close()


def main() -> None:
    """Read the command line, and make the pictures of the given runs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--splats", type=Path, metavar="RUN", help="a run of the built-in scene")
    parser.add_argument("--video", type=Path, metavar="RUN", help="a run of the built-in clip")
    parser.add_argument("--normals", type=Path, metavar="RUN", help="a run of an object whose surface is known")
    parser.add_argument("--mesh", type=Path, nargs=2, metavar=("RUN", "MESH"), help="a splats run, its textured mesh")
    chosen = parser.parse_args()
    if chosen.splats is not None:
        draw_splats(chosen.splats)
        draw_watch(chosen.splats)
        draw_report(chosen.splats)
        draw_tab(chosen.splats)
    if chosen.video is not None:
        draw_video(chosen.video)
    if chosen.normals is not None:
        draw_normals(chosen.normals)
    if chosen.mesh is not None:
        render_mesh(*chosen.mesh)


if __name__ == "__main__":
    main()
