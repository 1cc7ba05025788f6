"""Run scenes as Ray tasks, on this machine or on a cluster with a shared file system."""

import os
import shutil
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, Final, final

from fieldwatch.base import InputError
from fieldwatch.many.attempt import run_task
from fieldwatch.many.task import Capacity, ProcessExit, SceneTask, capacity_here

OBJECT_STORE_BYTES: Final = 100_000_000
"""Size of Ray's object store in bytes. It can be small, since only tasks and their results pass through it."""
LOOPBACK: Final = "127.0.0.1"
CLUSTERS: Final = "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER"
"""Ray's environment variable that allows a machine to be part of a cluster. While it is enabled (the default on Linux),
Ray replaces a loopback address by the machine's address and all of its servers listen on all interfaces. Ray reads the
variable once, when it is imported."""


class NoRay(InputError, RuntimeError):  # noqa: N818  named after the finding
    """Raised when Ray is not installed, or no cluster responds at the address."""


@final
class RayExecutor:
    """Runs scenes as Ray tasks with individual resources. Ray does not retry tasks; failures are reported.

    Args:
        address: address of a cluster; None starts Ray on this machine only, without dashboard and with all servers
            listening on 127.0.0.1 only.
        cpus: number of processors to use on this machine; None for all that this process may use.

    Raises:
        NoRay: if Ray is not installed, no cluster responds, or Ray would listen on addresses other than 127.0.0.1.
    """

    def __init__(self, address: str | None = None, cpus: int | None = None) -> None:
        self._ray = load_ray(alone=address is None)
        # Directly below /tmp, because Ray's socket paths may have at most 107 bytes.
        self._temporary = None if address else Path(tempfile.mkdtemp(prefix="fw-ray-", dir="/tmp"))
        self._local = address is None
        try:
            self._ray.init(**self._options(address, cpus))
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise NoRay(f"Ray at {address or 'this machine'} does not respond: {error}") from error
        if self._local:
            self._refuse_other_addresses()
        # max_retries=0 below: the driver decides about retries, and Ray must not restart a training on its own.
        self._attempt: Any = self._ray.remote(run_task)
        self._pending: dict[Any, tuple[SceneTask, float]] = {}

    def _options(self, address: str | None, cpus: int | None) -> dict[str, Any]:
        quiet = {"log_to_driver": False, "logging_level": "ERROR"}
        if address:
            return {"address": address, **quiet}
        return {
            "num_cpus": int(capacity_here(cpus, 0, 0).cpus),
            "include_dashboard": False,
            "object_store_memory": OBJECT_STORE_BYTES,
            "_node_ip_address": LOOPBACK,
            "_temp_dir": str(self._temporary),
            **quiet,
        }

    def capacity(self) -> Capacity:
        """Return the current resources of the cluster."""
        resources = self._ray.cluster_resources()
        return Capacity(
            cpus=resources.get("CPU", 0.0),
            gpus=resources.get("GPU", 0.0),
            memory_bytes=int(resources.get("memory", 0)),
            grows=not self._local,
        )

    def submit(self, task: SceneTask) -> None:
        """Submit a task to Ray, which starts it once resources are available."""
        # Ray schedules by memory only if it is given; 0 would be a request for none.
        memory = {"memory": task.memory_bytes} if task.memory_bytes else {}
        remote = self._attempt.options(num_cpus=task.cpus, num_gpus=task.gpus, max_retries=0, name=task.scene, **memory)
        self._pending[remote.remote(task)] = (task, time.monotonic())

    def wait(self, seconds: float) -> Sequence[tuple[SceneTask, ProcessExit]]:
        """Return finished tasks with their results; the death of a worker or a machine counts as a crash."""
        if not self._pending:
            time.sleep(seconds)
            return []
        ready, _ = self._ray.wait(list(self._pending), num_returns=1, timeout=seconds)
        if ready:
            # Also collect all other tasks that have ended, without waiting.
            ready, _ = self._ray.wait(list(self._pending), num_returns=len(self._pending), timeout=0)
        return [self._fetch(reference) for reference in ready]

    def close(self) -> None:
        """Wait for running tasks, which the driver has told to stop, then disconnect from Ray."""
        # Leaving Ray earlier would kill trainings before they have saved.
        while self._pending:
            self.wait(1.0)
        self._leave_ray()

    def _leave_ray(self) -> None:
        """Disconnect from Ray; shut down a local Ray and delete its files."""
        self._ray.shutdown()
        if self._temporary:
            shutil.rmtree(self._temporary, ignore_errors=True)

    def _refuse_other_addresses(self) -> None:
        """Shut Ray down if it does not use the loopback address, because its servers would listen on all interfaces.

        Raises:
            NoRay: if Ray uses another address; the message names it.
        """
        addresses = {str(node["NodeManagerAddress"]) for node in self._ray.nodes()}
        if addresses != {LOOPBACK}:
            self._leave_ray()
            raise NoRay(
                f"expected Ray to listen on {LOOPBACK} only, got {', '.join(sorted(addresses))}: Ray was imported with "
                f"{CLUSTERS} enabled, or this version of Ray does not support it. Train with --ray off (plain "
                "processes), or start a cluster yourself and give its address with --ray ADDRESS"
            )

    def _fetch(self, reference: Any) -> tuple[SceneTask, ProcessExit]:
        task, began = self._pending.pop(reference)
        try:
            return task, self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            lines = str(error).strip().splitlines()
            cause = f"{type(error).__name__} in Ray: {lines[0] if lines else 'no reason given'}"
            return task, ProcessExit(code=None, seconds=time.monotonic() - began, cause=cause)


def load_ray(*, alone: bool) -> ModuleType:
    """Import Ray with its usage statistics disabled.

    Args:
        alone: whether Ray is used on this machine only and must stay on the loopback address.

    Raises:
        NoRay: if Ray is not installed.
    """
    # Set these before the import, since Ray reads them only once.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if alone:
        os.environ[CLUSTERS] = "0"
    try:
        import ray  # noqa: PLC0415  optional
    except ImportError as error:
        raise NoRay(
            "Ray is not installed: pip install 'fieldwatch[ray]', or use --ray off to train the scenes in plain "
            "processes on this machine"
        ) from error
    return ray
