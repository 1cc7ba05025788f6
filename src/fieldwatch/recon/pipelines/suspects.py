"""Samples that the health rules suspect at the end of training, and the views that show nearly the same."""

from collections.abc import Sequence

import torch

from fieldwatch import Run, read_history
from fieldwatch.recon.geometry import Camera
from fieldwatch.rules import HealthRule

NEIGHBORS = 2
"""Number of neighbors beside each suspect: with one, the neighbor could be the wrong one."""


def suspects(run: Run, rule: HealthRule, names: Sequence[str]) -> list[int]:
    """Return the indices of the samples that a rule names as wrong, in the order of its findings.

    Call it after the last step. The run itself asks the rules only when it ends, which is too late for a picture.

    Args:
        run: current run; waits until all its rows are processed.
        rule: rule whose findings have samples as their subjects.
        names: names of all samples.
    """
    run.flush()
    index_of = {name: index for index, name in enumerate(names)}
    named = dict.fromkeys(finding.subject for finding in rule(read_history(run.folder)))
    return [index_of[name] for name in named if name in index_of]


def neighbors(cameras: Sequence[Camera], index: int, candidates: Sequence[int], size: float) -> list[int]:
    """Return the candidates whose cameras stand and look most like one camera, the most similar first.

    Args:
        cameras: all cameras.
        index: the camera to compare with; it is never among the result.
        candidates: indices to choose from.
        size: length in world units that counts as much as a difference of one radian in direction.
    """
    camera = cameras[index]

    def difference(other: int) -> float:
        apart = float(torch.linalg.vector_norm(cameras[other].position - camera.position)) / size
        cosine = torch.dot(cameras[other].forward, camera.forward).clamp(-1, 1)
        return apart + float(torch.acos(cosine))

    return sorted((other for other in candidates if other != index), key=difference)[:NEIGHBORS]
