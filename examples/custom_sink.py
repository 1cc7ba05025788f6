"""A sink of your own: any callable that takes blocks of rows."""

import sys

import torch

from fieldwatch import Block, Outputs, Run


class Best:
    """Remembers the best value of a metric and the step it was reached at."""

    def __init__(self, metric: str) -> None:
        self.metric, self.value, self.step = metric, float("inf"), -1

    def __call__(self, block: Block) -> None:
        if self.metric in block.columns:
            values = block.values[:, block.columns.index(self.metric)]
            if values.min() < self.value:
                self.value, self.step = float(values.min()), int(block.steps[values.argmin()])


def main() -> None:
    best = Best("Loss/total")
    with Run(sys.argv[1] if len(sys.argv) > 1 else "runs/custom_sink", outputs=Outputs(sinks=(best,))) as run:
        for step in run.steps(200):
            step.record({"Loss/total": torch.tensor((step.index - 120.0) ** 2)})
    print(f"best {best.metric} {best.value} at step {best.step}")


if __name__ == "__main__":
    main()
