"""Pass each step's values to the writer thread, so that no step waits for the device."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fieldwatch.measure.ring import DeviceRing, Heading, HostRows, is_on_host
from fieldwatch.record import WriterThread


class StepRecorder:
    """The training thread's interface to the record.

    The first recorded tensor determines the device of the ring; on a CPU, no ring is needed. In a CUDA run, scalars on
    the CPU are read immediately, which requires no synchronization.

    Args:
        writer: writer thread that receives the rows.
    """

    def __init__(self, writer: WriterThread) -> None:
        self._writer = writer
        self._ring: DeviceRing | HostRows | None = None
        self._device_known = False

    def write(self, heading: Heading, device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Record one row, and submit the collected rows when they are due."""
        ring = self._ring
        # Rows of host values alone are kept on the host, until the first tensor reveals the device.
        if ring is None or not (self._device_known or not device_values):
            ring = self._new_ring(device_values)
        if device_values or host_values:
            try:
                ring.write(heading, device_values, host_values)
            # `stack` rejects mixed devices. Handling the error is cheaper than checking all devices at every step.
            except RuntimeError:
                device_values, host_scalars = _split_by_device(device_values, ring.device)
                # All tensors are on the ring's device, so the error has another cause.
                if not host_scalars:
                    raise
                ring.write(heading, device_values, {**host_values, **host_scalars})
        if ring.due():
            self.hand_over()

    def hand_over(self) -> None:
        """Submit the rows collected so far to the writer thread."""
        transfer = self._ring.take() if self._ring is not None else None
        if transfer is not None:
            self._writer.submit(transfer)

    def drain(self) -> None:
        """Wait until every row so far has been processed: before a checkpoint, after a crash, at the end of the run."""
        self.hand_over()
        self._writer.drain()

    def _new_ring(self, device_values: Mapping[str, Tensor]) -> DeviceRing | HostRows:
        """Create and return the ring, on the device of the first recorded tensor."""
        # Submit rows of the old ring first, to keep the order.
        self.hand_over()
        device = next((value.device for value in device_values.values()), torch.device("cpu"))
        self._ring = HostRows() if is_on_host(device) else DeviceRing(device)
        self._device_known = bool(device_values)
        return self._ring


def _split_by_device(values: Mapping[str, Tensor], device: torch.device) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Split values into tensors on the ring's device and the values of all other tensors, read to the host."""
    on_device = {name: value for name, value in values.items() if value.device == device}
    return on_device, {name: float(value) for name, value in values.items() if value.device != device}
