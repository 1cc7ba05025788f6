"""Reader for the pictures of an event file of any program."""

# The classes that protobuf generates have no types, so this file is checked in basic mode only.
# pyright: basic, reportAttributeAccessIssue=false

import mmap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from google.protobuf.message import DecodeError
from tensorboard.compat.proto import event_pb2

from fieldwatch.report.foreign.files import intact_records

_PLUGIN = "images"


@dataclass(frozen=True, kw_only=True)
class EventPicture:
    """A picture in an event file.

    Attributes:
        tag: tag of the picture; of several pictures under one TensorFlow 2 tag, the first is kept.
        step: step at which it was logged.
        content: content of the image file, as a rule PNG.
    """

    tag: str
    step: int
    content: bytes


def read_logged_pictures(path: Path) -> Iterator[EventPicture]:
    """Yield the pictures of an event file in the order written, up to its end or the first damaged record."""
    if not path.stat().st_size:
        return
    plugins: dict[str, str] = {}
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        for record in intact_records(data):
            try:
                event = event_pb2.Event.FromString(record)
            except DecodeError:
                return
            for value in event.summary.value:
                plugin = value.metadata.plugin_data.plugin_name
                # Only the first value of a tag has to name its plugin.
                plugin = plugins.setdefault(value.tag, plugin) if plugin else plugins.get(value.tag, "")
                content = _content(value, plugin)
                if content:
                    yield EventPicture(tag=value.tag, step=event.step, content=content)


def _content(value: Any, plugin: str) -> bytes:
    """Return the image file of a value; empty if it is no picture."""
    if value.HasField("image"):
        return value.image.encoded_image_string
    # TensorFlow 2 writes a tensor of texts: width, height, and one image file per picture of the batch.
    texts = value.tensor.string_val if plugin == _PLUGIN and value.HasField("tensor") else ()
    return texts[2] if len(texts) > 2 else b""
