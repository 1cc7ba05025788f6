"""List the operations that torch computes on a CPU but not on CUDA, for `cpu_only_operations.txt`.

python3 -m venv cuda && cuda/bin/pip install torch   # PyPI's build for Linux: with CUDA, which needs no GPU here
cuda/bin/python tests/fake_cuda/list_cpu_only_operations.py
"""

from pathlib import Path

import torch
from torch._C import _dispatch_get_all_op_names, _dispatch_has_kernel_for_dispatch_key

COMPOSITES = (
    "CompositeImplicitAutograd",
    "CompositeExplicitAutograd",
    "CompositeExplicitAutogradNonFunctional",
)


def runs_on(name: str, device: str) -> bool:
    """Whether an operation has a kernel for a device, or is composed of others."""
    return any(_dispatch_has_kernel_for_dispatch_key(name, key) for key in (device, *COMPOSITES))


if __name__ == "__main__":
    if torch.version.cuda is None:
        raise SystemExit(f"torch {torch.__version__} has no CUDA kernels to list: run this with a CUDA build")
    names = sorted(name for name in _dispatch_get_all_op_names() if name.startswith("aten::"))
    cpu_only = [name for name in names if runs_on(name, "CPU") and not runs_on(name, "CUDA")]
    target = Path(__file__).with_name("cpu_only_operations.txt")
    target.write_text(f"# torch {torch.__version__}\n" + "\n".join(cpu_only) + "\n")
    print(target, len(cpu_only), "operations")
