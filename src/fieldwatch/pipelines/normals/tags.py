"""Every tag a normals run records beyond the toolkit's."""

from fieldwatch.pipelines.normals.evaluation_tags import EVALUATION_METRICS, EVALUATION_PICTURES
from fieldwatch.pipelines.normals.recovery_tags import RECOVERY_METRICS
from fieldwatch.record import Catalogue

NORMALS_METRICS = Catalogue((*EVALUATION_METRICS, *RECOVERY_METRICS, *EVALUATION_PICTURES))
"""The seed's log line, what is done about a lost surface, and how good the surface is."""
