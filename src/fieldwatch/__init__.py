"""fieldwatch: train neural reconstructions in plain sight, and do not lose the run."""
