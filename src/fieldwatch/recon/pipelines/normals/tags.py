"""All tags that a normals run records in addition to the toolkit's."""

from fieldwatch import Catalogue
from fieldwatch.recon.pipelines.normals.evaluation_tags import EVALUATION_METRICS, EVALUATION_PICTURES
from fieldwatch.recon.pipelines.normals.recovery_tags import RECOVERY_METRICS

NORMALS_METRICS = Catalogue((*EVALUATION_METRICS, *RECOVERY_METRICS, *EVALUATION_PICTURES))
"""Metrics of evaluation and recovery, and evaluation images; names follow PMNI's logs."""
