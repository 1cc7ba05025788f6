"""Takes each step's values to the writer thread: through the ring, so that no step waits for the device."""

from collections.abc import Mapping

import torch
from torch import Tensor

from fieldwatch.measure.ring import DeviceRing, Heading
from fieldwatch.record import WriterThread


class StepRecorder:
    """The training thread's end of the record.

    The first recorded tensor decides the ring's device. A scalar that lives on the CPU of a CUDA run is read at once,
    which costs no synchronisation.

    Args:
        writer: the thread that reads the rows.
    """

    def __init__(self, writer: WriterThread) -> None:
        self._writer = writer
        self._ring: DeviceRing | None = None
        self._device_known = False

    def write(self, heading: Heading, device_values: Mapping[str, Tensor], host_values: Mapping[str, float]) -> None:
        """Keep one row, and hand the collected rows over when they are due."""
        ring = self._ring_for(device_values)
        if device_values or host_values:
            try:
                ring.write(heading, device_values, host_values)
            # `stack` refuses tensors of two devices; looking at every device at every step would cost more than this.
            except RuntimeError:
                device_values, host_scalars = _split_by_device(device_values, ring.device)
                if not host_scalars:
                    raise
                ring.write(heading, device_values, {**host_values, **host_scalars})
        if ring.due():
            self.hand_over()

    def hand_over(self) -> None:
        """Send the rows collected so far on their way."""
        transfer = self._ring.take() if self._ring is not None else None
        if transfer is not None:
            self._writer.submit(transfer)

    def drain(self) -> None:
        """Wait until every row so far has been read: before a checkpoint, at a crash, at the end."""
        self.hand_over()
        self._writer.drain()

    def _ring_for(self, device_values: Mapping[str, Tensor]) -> DeviceRing:
        """The ring; the first values of a device decide where it lies, rows of host numbers alone do not."""
        # A ring made for host numbers alone is replaced once the first tensor tells the device.
        if self._ring is not None and (self._device_known or not device_values):
            return self._ring
        self.hand_over()
        device = next((value.device for value in device_values.values()), torch.device("cpu"))
        self._ring = DeviceRing(device)
        self._device_known = bool(device_values)
        return self._ring


def _split_by_device(values: Mapping[str, Tensor], device: torch.device) -> tuple[dict[str, Tensor], dict[str, float]]:
    """The values that live on the ring's device, and the others, read."""
    on_device = {name: value for name, value in values.items() if value.device == device}
    return on_device, {name: float(value) for name, value in values.items() if value.device != device}
