"""The window of a scene: it answers on this machine only, and shows Gaussians, meshes and cameras with photos."""

import importlib
import inspect
import random
import threading
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path

import numpy as np
import pytest

from fieldwatch import InputError
from fieldwatch.recon.commands.view import window as module
from fieldwatch.recon.commands.view.scene import open_scene
from fieldwatch.recon.commands.view.window import BrowserWindow, check_address
from fieldwatch.recon.geometry import Camera, look_at
from fieldwatch.recon.mesh import Triangles
from ports import free_port

FILES = Path(__file__).parents[3] / "fixtures" / "splat_files"


@pytest.fixture
def port():
    pytest.importorskip("viser", reason="no viser here: pip install 'fieldwatch[viewer]'")
    return free_port()


def camera(name):
    lens = {"width": 8, "height": 6, "fx": 8.0, "fy": 8.0, "cx": 4.0, "cy": 3.0}
    pose = look_at((3.0, 0.0, 0.0), (0.0, 0.0, 0.0), (0.0, 0.0, 1.0))
    return Camera(name=name, world_from_camera=pose.float(), **lens)


def test_the_connections_of_a_window_leave_python_s_generator_to_the_training(port):
    with BrowserWindow(open_scene(FILES / "scene.ply"), port=port):
        connection = importlib.import_module("websockets.asyncio.connection")
        # As its pings do, every 20 seconds.
        assert "random.getrandbits(32)" in inspect.getsource(connection)
        before = random.getstate()
        connection.random.getrandbits(32)
        assert random.getstate() == before


def test_a_window_serves_its_page_on_this_machine(port, capsys):
    scene = open_scene(FILES / "scene.ply")
    with BrowserWindow(scene, port=port) as window:
        assert window.address == f"http://localhost:{port}"
        assert window.server.get_host() == "127.0.0.1"
        asked = HTTPConnection("localhost", port, timeout=30)
        asked.request("GET", "/")
        assert b"<title>" in asked.getresponse().read()
        asked.close()
    assert capsys.readouterr().out == ""


def test_a_scene_replaces_the_one_before_and_cameras_have_photos(port, monkeypatch):
    monkeypatch.setattr(module, "MOST_FRUSTUMS", 2)
    asked = []

    def photo(index):
        asked.append(index)
        return np.full((6, 8, 3), index, np.uint8)

    scene = replace(open_scene(FILES / "scene.sog"), cameras=[camera(f"{n}") for n in range(4)], photo=photo)
    places = np.array([[0.0, 0, 0], [1, 0, 0], [0, 1, 0]])
    mesh = Triangles(vertices=places, faces=np.array([[0, 1, 2]]))
    with BrowserWindow(scene, port=port) as window:
        (gaussians,) = window._shown
        window.show(replace(scene, gaussians=None, mesh=mesh))
        (shown,) = window._shown
        assert shown.vertices.shape == (3, 3)
        assert gaussians is not shown
        assert asked == [0, 2]
        assert len(window._frustums) == 2


def test_of_too_many_gaussians_those_that_count_are_sent(port, monkeypatch):
    monkeypatch.setattr(module, "MOST_GAUSSIANS", 100)
    with BrowserWindow(open_scene(FILES / "scene.ply"), port=port) as window:
        assert len(window._shown[0].buffer) == 100


@pytest.mark.parametrize("host", ["::", "192.168.1.2", "example.org", ""])
def test_addresses_that_others_reach_are_refused_with_a_way_out(host):
    with pytest.raises(InputError, match="ssh -L 8080:localhost:8080"):
        check_address(host, 8080)


def test_without_viser_the_message_says_what_to_install(monkeypatch):
    def missing(name):
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(module, "import_module", missing)
    threads = threading.active_count()
    with pytest.raises(InputError, match=r"fieldwatch\[viewer\]"):
        BrowserWindow(open_scene(FILES / "scene.ply"))
    assert threading.active_count() == threads
