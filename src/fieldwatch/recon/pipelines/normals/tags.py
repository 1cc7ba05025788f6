"""Every tag a normals run records beyond the toolkit's."""

from fieldwatch import Catalogue
from fieldwatch.recon.pipelines.normals.evaluation_tags import EVALUATION_METRICS, EVALUATION_PICTURES
from fieldwatch.recon.pipelines.normals.recovery_tags import RECOVERY_METRICS

NORMALS_METRICS = Catalogue((*EVALUATION_METRICS, *RECOVERY_METRICS, *EVALUATION_PICTURES))
"""What PMNI logs, what is done about a lost surface, and how good the surface is."""
