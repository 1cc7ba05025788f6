"""``fieldwatch view RUN-or-FILE``: show Gaussians, a mesh or a run, in a window of the browser or on a page."""

import sys
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from fieldwatch.cli.kit import (
    BadInput,
    Terminal,
    check_writable,
    print_json,
    print_paths,
    read_flags,
    reading_input,
    write_page,
)
from fieldwatch.recon.commands.mesh.page import mesh_account, mesh_kind
from fieldwatch.recon.commands.view.flags import SceneFlags
from fieldwatch.recon.commands.view.page import gaussians_account, gaussians_kind
from fieldwatch.recon.commands.view.scene import ViewedScene, open_scene
from fieldwatch.recon.commands.view.window import BrowserWindow, check_address
from fieldwatch.recon.mesh import grade_mesh, mesh_quality

MOST = 10_000_000
"""Largest number of Gaussians of a page."""


def run(arguments: Sequence[str]) -> int:
    """Run the command."""
    chosen = read_flags(SceneFlags, prog="fieldwatch view", arguments=arguments)
    check_arguments(chosen)
    console = Terminal(stderr=chosen.json)
    with reading_input():
        if chosen.page is not None:
            check_writable(chosen.page.parent)
        with console.status("reading the scene"):
            scene = open_scene(chosen.scene, checkpoint=chosen.checkpoint, device=chosen.device)
        if chosen.up is not None:
            scene = replace(scene, up=chosen.up)
        if chosen.page is None:
            return open_window(chosen, scene, console)
        figures = write_scene_page(scene, chosen.page, most=chosen.most)
    files = {"page": chosen.page.absolute()}
    if chosen.json:
        print_json({"scene": chosen.scene, "facts": figures, "files": files})
    else:
        print_paths(console, figures)
        print_paths(console, files)
    return 0


def check_arguments(chosen: SceneFlags) -> None:
    """Refuse values that are wrong for every scene.

    Raises:
        BadInput: a file has the wrong suffix, or a value is out of bounds.
    """
    page = chosen.page
    if page is not None and page.suffix.lower() != ".html":
        raise BadInput(f"--page must be a file that ends in .html, as in {page.with_suffix('.html')}, got {page}")
    if not 1 <= chosen.most <= MOST:
        raise BadInput(f"--most must be 1 to {MOST:,} Gaussians, as in 500000, got {chosen.most}")
    check_address(chosen.host, chosen.port)
    # Refuses zero vectors, infinities and NaN with one comparison.
    if chosen.up is not None and not 0 < sum(value * value for value in chosen.up) < float("inf"):
        raise BadInput(f"--up must be a direction, as in 0 0 1 for +z, got {' '.join(map(str, chosen.up))}")


def open_window(chosen: SceneFlags, scene: ViewedScene, console: Console) -> int:
    """Show a scene in a window until the command is interrupted.

    Raises:
        InputError: viser is not installed.
    """
    with BrowserWindow(scene, host=chosen.host, port=chosen.port) as window:
        if len(scene.steps) > 1:
            offer_steps(window, chosen, scene)
        if chosen.json:
            print_json({"scene": chosen.scene, "address": window.address})
        else:
            print_paths(console, {"open": window.address, "stop": "Ctrl-C"})
        sys.stdout.flush()
        with suppress(KeyboardInterrupt):
            threading.Event().wait()
    return 0


def offer_steps(window: BrowserWindow, chosen: SceneFlags, scene: ViewedScene) -> None:
    """Add a choice of the run's checkpoints."""
    choice = window.server.gui.add_dropdown("Checkpoint", tuple(map(str, scene.steps)), initial_value=str(scene.step))

    @choice.on_update
    def _(_event: Any) -> None:
        other = open_scene(chosen.scene, checkpoint=choice.value, device=chosen.device)
        window.show(other)


def write_scene_page(scene: ViewedScene, path: Path, *, most: int) -> Mapping[str, str]:
    """Write the page of a scene; return its figures."""
    if scene.mesh is None:
        account, figures = gaussians_account(scene, most=most)
        write_page(account, path, [gaussians_kind()])
        return figures
    grade = grade_mesh(mesh_quality(scene.mesh))
    figures = {"triangles": f"{len(scene.mesh.faces):,}", "vertices": f"{len(scene.mesh.vertices):,}"}
    write_page(
        mesh_account(scene.mesh, title=scene.title, grade=grade, figures=figures, up=scene.up), path, [mesh_kind()]
    )
    return figures
