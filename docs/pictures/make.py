"""Draws the pictures of README and docs.

    python docs/pictures/make.py VIDEO_RUN SPLATS_RUN PLUSH_RUN PLUSH_MESH
    python docs/pictures/make.py NORMALS_RUN
    python docs/pictures/make.py tab SPLATS_RUN
    python docs/pictures/make.py watch SPLATS_RUN
    python docs/pictures/make.py report SPLATS_RUN

The first two folders are those that `make demo` and `fieldwatch train splats` print. The others are of the snowmiku
photos: `fieldwatch train splats -s FOLDER --preset cpu`, and of it `fieldwatch mesh extract --no-background --bbox
-3 -1.3 1.6 0.9 2.6 5.2` and `fieldwatch mesh texture`. The last is of spot:
`fieldwatch data render-normals`, `fieldwatch train normals --preset cpu`. The tab and the report are drawn by
Debian's chromium.
"""

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
    """Choose cameras as far from each other as they come, none of them near, from left to right."""
    distances = [float((camera.position - focus_point(cameras)).norm()) for camera in cameras]
    cameras = [camera for camera, far in zip(cameras, distances, strict=True) if far > np.median(distances)]
    places = np.stack([camera.position.numpy() for camera in cameras])
    chosen = [0]
    while len(chosen) < SIDES:
        chosen.append(int(np.linalg.norm(places[:, None] - places[chosen], axis=2).min(1).argmax()))
    across = places @ cameras[0].world_from_camera[:3, 0].numpy()
    return [cameras[i] for i in sorted(chosen, key=lambda i: across[i])]


def render_mesh(run: Path, mesh: Path) -> None:
    """Draw a mesh from four cameras, spread over where photos were taken: its colors, and its form alone."""
    stored = splats.open_run(run, "last")
    cameras = [camera.resized(480, 360) for camera in apart(list(stored.scene.photos.cameras))]
    renderer = MeshRenderer(read_mesh(mesh))
    sheet = [[renderer.render(one, shading=shading) for one in cameras] for shading in ("color", "clay")]
    Image.fromarray(np.concatenate([np.concatenate(row, 1) for row in sheet])).save(HERE / "mesh.png")


def draw_normals(run: Path) -> None:
    """Draw a trained surface above the true one, from four of its views: normals and form."""
    stored = normals.open_run(run, "last")
    scene = stored.scene
    ours, truth = normals.surface_mesh(stored.model, scene, 256, world=False), scene.truth
    chosen = [scene.maps.cameras[i * len(scene.maps) // SIDES] for i in range(SIDES)]
    cameras = [camera.resized(360, 360) for camera in chosen]
    sheet = [
        [MeshRenderer(mesh).render(one, shading=shading) for shading in ("clay", "normals") for one in cameras[::2]]
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
            browser = playwright.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
            page = browser.new_page(viewport={"width": 1480, "height": 1040})
            until_it_answers(f"http://localhost:{port}")
            page.goto(f"http://localhost:{port}/#fieldwatch")
            page.frame_locator("iframe").locator("#panel-losses canvas").first.wait_for()
            page.wait_for_timeout(1000)  # the other canvases
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
    told = console.export_svg(title=f"fieldwatch watch {run}")
    (HERE / "watch.svg").write_text(re.sub(r"@font-face \{.*?\}\s*", "", told, flags=re.DOTALL))  # fonts of a network


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
    """Draw the report of a run as it opens: on a screen, and on a phone."""
    chromium = shutil.which("chromium")
    if chromium is None:
        sys.exit("the report is drawn by Chromium, and there is none here: apt-get install chromium")
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        path = Path(folder) / "report.html"
        write_page(account_of(run), path)
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for name, (width, height), panel in (
            ("report", (1280, 1180), "verdict"),
            ("report_phone", (390, 844), "panel-losses"),
        ):
            page = browser.new_page(viewport={"width": width, "height": height}, color_scheme="light")
            page.goto(path.as_uri())
            page.wait_for_selector("body[data-state=drawn]")
            page.evaluate("(panel) => panel === 'verdict' || document.getElementById(panel).scrollIntoView()", panel)
            page.wait_for_timeout(500)  # the canvases
            page.screenshot(path=HERE / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    if sys.argv[1] == "report":
        draw_report(Path(sys.argv[2]))
        sys.exit()
    if sys.argv[1] == "watch":
        draw_watch(Path(sys.argv[2]))
        sys.exit()
    if sys.argv[1] == "tab":
        draw_tab(Path(sys.argv[2]))
        sys.exit()
    if len(sys.argv) == 2:
        draw_normals(Path(sys.argv[1]))
        sys.exit()
    draw_video(Path(sys.argv[1]))
    draw_splats(Path(sys.argv[2]))
    render_mesh(Path(sys.argv[3]), Path(sys.argv[4]))
