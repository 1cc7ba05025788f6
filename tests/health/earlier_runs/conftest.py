"""Run folders with a few recorded values."""

import numpy as np
import pytest

from fieldwatch.record import Block, Journal, Manifest, new_segment


@pytest.fixture
def recorded(tmp_path):
    """Write a finished run of ``steps`` steps; each metric has its values at equal distances, the last at the end."""

    def write(
        name,
        *,
        steps=400,
        loss=None,
        state="finished",
        config=None,
        command=("train.py",),
        resumed=(),
        started="2026-01-02T03:04:05+00:00",
        about=None,
        versions=None,
        **metrics,
    ):
        folder = tmp_path / "runs" / name
        folder.mkdir(parents=True)
        segments = [{**new_segment(0), "command": [*command], "started": started}]
        if resumed:
            segments.append({**new_segment(10), "command": [*resumed], "started": started})
        manifest = Manifest(
            config=config or {}, about=about or {}, segments=tuple(segments), versions=versions or {}, state=state
        )
        manifest.write(folder)
        columns = {"Loss/total": np.linspace(1.0, 0.1, steps) if loss is None else np.asarray(loss, float)}
        columns |= {metric.replace("__", "/"): np.asarray(values, float) for metric, values in metrics.items()}
        with Journal(folder) as journal:
            for metric, values in columns.items():
                at = np.linspace(0, steps, len(values) + 1)[1:].astype(int) - 1
                journal.append(
                    Block(
                        axis="step",
                        columns=(metric,),
                        steps=at,
                        seconds=at * 0.1,
                        positions=at,
                        values=values[:, None],
                    )
                )
        return folder

    return write
