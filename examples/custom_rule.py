"""A custom health rule: any callable that takes the history and returns a finding or None."""

import sys
from dataclasses import dataclass

import numpy as np
import torch

from fieldwatch import Finding, History, Outputs, Run


@dataclass(frozen=True, kw_only=True)
class StuckAt:
    """The metric has not changed by more than ``by`` for ``steps`` steps."""

    metric: str
    steps: int = 64
    by: float = 1e-6

    def __call__(self, history: History) -> Finding | None:
        if self.metric not in history:
            return None
        series = history[self.metric]
        # The last step at which the metric still differed from its final value.
        changed = np.flatnonzero(np.abs(series.values - series.values[-1]) > self.by)
        first = int(changed[-1]) + 1 if len(changed) else 0
        if len(series) - first < self.steps:
            return None
        return Finding(
            rule="StuckAt",
            step=int(series.steps[first]),
            severity="warning",
            message=f"{self.metric} has been {series.values[-1]:.3g} since step {series.steps[first]:.0f}.",
            remedy="Check that the optimizer has its parameters.",
            subject=self.metric,
        )


def main() -> None:
    with Run(
        sys.argv[1] if len(sys.argv) > 1 else "runs/custom_rule",
        outputs=Outputs(rules=(StuckAt(metric="Field/sharpness"),)),
    ) as run:
        for step in run.steps(256):
            # The metric grows for 100 steps and then stays constant.
            growth = 0.01 * min(100, step.index)
            step.record({"Field/sharpness": torch.tensor(2.0 + growth)})
    for finding in run.findings:
        print(finding)


if __name__ == "__main__":
    main()
