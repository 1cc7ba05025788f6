"""Schedule of a refinement."""

from fieldwatch import Phase, Window
from fieldwatch.recon.pipelines.splats.refined.config import RefineConfig
from fieldwatch.recon.pipelines.splats.schedule import Plan

PHASE = "refine"


def make_refine_plan(config: RefineConfig, notes: tuple[str, ...] = ()) -> Plan:
    """Return the plan of a refinement: no densification, and both loss terms act at every step.

    Args:
        config: settings of the refinement.
        notes: messages for the user.
    """
    total = config.iterations
    whole = Window(0, total - 1)
    terms = ["rendering", *(["normal_consistency"] if config.normal_consistency_weight else [])]
    return Plan(
        first=0,
        total=total,
        windows=dict.fromkeys(terms, whole),
        phases=(Phase(PHASE, whole),),
        densification=None,
        prune_after=None,
        # Never searched: no term of a refinement compares neighbors.
        neighbors_every=total,
        tests=frozenset(step for step in config.test_iterations if step <= total) | {total},
        # Every evaluation saves a checkpoint anyway.
        saves=frozenset(),
        checkpoint_every=config.checkpoint_interval or None,
        export_after=None,
        exported_as=0,
        degree_every=config.degree_every,
        scale=1.0,
        notes=notes,
    )
