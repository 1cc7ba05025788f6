"""A custom sink: any callable that takes blocks of rows."""

import sys

import torch

from fieldwatch import Block, Outputs, Run


class Best:
    """Keeps the lowest value of a metric and its step."""

    def __init__(self, metric: str) -> None:
        self.metric = metric
        self.value = float("inf")
        self.step = -1

    def __call__(self, block: Block) -> None:
        if self.metric in block.columns:
            values = block.values[:, block.columns.index(self.metric)]
            if values.min() < self.value:
                self.value = float(values.min())
                self.step = int(block.steps[values.argmin()])


def main() -> None:
    best = Best("Loss/total")
    with Run(sys.argv[1] if len(sys.argv) > 1 else "runs/custom_sink", outputs=Outputs(sinks=(best,))) as run:
        for step in run.steps(200):
            step.record({"Loss/total": torch.tensor((step.index - 120.0) ** 2)})
    print(f"best {best.metric} {best.value} at step {best.step}")


if __name__ == "__main__":
    main()
