"""Monitor: the machine beside the run: GPUs, processes, memory; needs no torch and makes no CUDA context."""
