"""A window in the browser, served by viser on this machine: cameras with their photos, Gaussians, meshes, pictures."""

import io
import math
import random
from collections.abc import Sequence
from contextlib import redirect_stdout
from importlib import import_module
from typing import Any, Final, Self

import numpy as np
import torch
from jaxtyping import UInt8

from fieldwatch import InputError
from fieldwatch.recon.commands.view.scene import ViewedScene, first_view
from fieldwatch.recon.data import GaussianCloud
from fieldwatch.recon.geometry import Camera, matrix_to_quaternion, normalized_quaternions, quaternion_to_matrix
from fieldwatch.recon.mesh import Triangles

Picture = UInt8[np.ndarray, "height width 3"]

LOCAL: Final = ("127.0.0.1", "localhost", "::1")
"""Addresses that only this machine reaches."""
HIGHEST_PORT: Final = 65535
MOST_FRUSTUMS: Final = 150
"""Maximum number of cameras that are drawn: of more, evenly spaced ones."""
MOST_GAUSSIANS: Final = 2_000_000
"""Maximum number of Gaussians sent to the browser, 32 bytes each."""
_FIELD: Final = math.radians(50)
_OFF_AXIS: Final = 0.35
_SH_CONSTANT: Final = math.sqrt(1 / (4 * math.pi))


def check_address(host: str, port: int) -> None:
    """Refuse addresses that other machines reach: viser cannot ask who connects.

    Raises:
        InputError: the address is not one of this machine alone, or the port is out of bounds.
    """
    if host not in LOCAL:
        raise InputError(
            f"--host must be one of {', '.join(LOCAL)}, got {host}: whoever reaches the window could see the scene and "
            f"pause the training. From another machine, use a tunnel: ssh -L {port}:localhost:{port} THIS_MACHINE"
        )
    if not 0 <= port <= HIGHEST_PORT:
        raise InputError(f"the port must be 0 to {HIGHEST_PORT}, as in 8080, got {port}")


def _viser() -> Any:
    """Import viser, the package of an extra: only whoever opens a window needs it.

    Raises:
        InputError: it is not installed.
    """
    try:
        viser = import_module("viser")
        # The pings of its connections draw from Python's generator, which belongs to the training.
        connection: Any = import_module("websockets.asyncio.connection")
        connection.random = random.Random()  # noqa: S311  no secret
    except ModuleNotFoundError as error:
        if error.name != "viser":
            raise
        raise InputError("the window needs viser, which is not installed: pip install 'fieldwatch[viewer]'") from error
    return viser


class BrowserWindow:
    """A window in the browser. Close it with :meth:`close`, or use it as a context manager.

    Args:
        scene: scene whose cameras are drawn, with their photos; its Gaussians or its mesh are shown if it has some.
        host: address of this machine.
        port: port; another free one is taken if it is in use.

    Attributes:
        server: viser's server.

    Raises:
        InputError: the address is not one of this machine alone, or viser is not installed.
    """

    def __init__(self, scene: ViewedScene, *, host: str = LOCAL[0], port: int = 8080) -> None:
        check_address(host, port)
        viser = _viser()
        # Its banner on standard output would be in the way of --json.
        with redirect_stdout(io.StringIO()):
            self.server: Any = viser.ViserServer(
                host=host, port=port, label=f"fieldwatch: {scene.title}", verbose=False
            )
        # The button asks a public server for an address that the whole internet reaches.
        self.server.gui.configure_theme(show_share_button=False)
        self._middle, self._radius = first_view(scene)
        self._look(scene.up)
        self._frustums = self._add_cameras(scene)
        self._shown: list[Any] = []
        self.show(scene)

    @property
    def address(self) -> str:
        """Address to open in a browser on this machine."""
        return f"http://localhost:{self.server.get_port()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the server."""
        # It announces its end on standard output, too.
        with redirect_stdout(io.StringIO()):
            self.server.stop()

    def show(self, scene: ViewedScene) -> None:
        """Show the Gaussians or the mesh of a scene in place of those before."""
        # At once: a browser never shows an empty scene in between.
        with self.server.atomic():
            for node in self._shown:
                node.remove()
            self._shown = []
            if scene.gaussians is not None:
                self._shown = [self._gaussians(scene.gaussians)]
            elif scene.mesh is not None:
                self._shown = [self._mesh(scene.mesh)]

    def _look(self, up: Sequence[float]) -> None:
        """Set the upward direction and the first view."""
        upward = np.asarray(up, np.float64)
        upward /= np.linalg.norm(upward)
        # Any horizontal direction.
        side = np.cross(upward, np.eye(3)[int(np.abs(upward).argmin())])
        side /= np.linalg.norm(side)
        middle = self._middle.numpy()
        start = self.server.initial_camera
        self.server.scene.set_up_direction(tuple(upward))
        start.position = middle + self._radius / math.tan(_FIELD / 2) * (side + _OFF_AXIS * upward)
        start.look_at = middle
        start.up = upward
        start.fov = _FIELD
        start.near = 1e-3 * self._radius
        start.far = 1e3 * self._radius

    def _add_cameras(self, scene: ViewedScene) -> list[Any]:
        """Draw cameras as frustums; a click looks through one."""
        cameras = scene.cameras
        every = max(1, math.ceil(len(cameras) / MOST_FRUSTUMS))
        frustums = [self._frustum(cameras[at], scene.photo(at)) for at in range(0, len(cameras), every)]
        if frustums:
            visible = self.server.gui.add_checkbox("Cameras", initial_value=True)

            @visible.on_update
            def _(_event: Any) -> None:
                for frustum in frustums:
                    frustum.visible = visible.value

        return frustums

    def _frustum(self, camera: Camera, photo: Picture | None) -> Any:
        pose = camera.world_from_camera.double().cpu()
        turn = matrix_to_quaternion(pose[:3, :3]).numpy()
        place = pose[:3, 3].numpy()
        frustum = self.server.scene.add_camera_frustum(
            f"/cameras/{camera.name}",
            fov=2 * math.atan(camera.height / 2 / camera.fy),
            aspect=camera.width / camera.height,
            scale=0.12 * self._radius,
            thickness=0.003 * self._radius,
            color=(20, 110, 180),
            image=photo,
            wxyz=turn,
            position=place,
            cast_shadow=False,
            receive_shadow=False,
        )

        @frustum.on_click
        def _(event: Any) -> None:
            view = event.client.camera
            with event.client.atomic():
                view.wxyz = turn
                view.position = place
                view.look_at = place + self._radius * pose[:3, 2].numpy()

        return frustum

    def _gaussians(self, cloud: GaussianCloud) -> Any:
        cloud = cloud.fused()
        opacities = cloud.opacity_logits.double().sigmoid()
        if len(cloud) > MOST_GAUSSIANS:
            longest = cloud.log_scales.double().topk(2, dim=1).values.sum(1)
            kept = (longest + opacities.log()).topk(MOST_GAUSSIANS).indices.sort().values
        else:
            kept = torch.arange(len(cloud))
        axes = quaternion_to_matrix(normalized_quaternions(cloud.quaternions[kept].double()))
        spread = axes * cloud.log_scales[kept].double().exp()[:, None, :]
        return self.server.scene.add_gaussian_splats(
            "/gaussians",
            centers=cloud.means[kept].numpy(),
            covariances=(spread @ spread.transpose(1, 2)).float().numpy(),
            rgbs=(0.5 + _SH_CONSTANT * cloud.constant[kept]).clamp(0, 1).numpy(),
            opacities=opacities[kept, None].float().numpy(),
        )

    def _mesh(self, mesh: Triangles) -> Any:
        return self.server.scene.add_mesh_simple(
            "/mesh",
            vertices=mesh.vertices.astype(np.float32),
            faces=mesh.faces.astype(np.uint32),
            color=(205, 200, 192),
            side="double",
            cast_shadow=False,
            receive_shadow=False,
        )
