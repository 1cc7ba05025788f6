"""What the doctor says about the native kernels, which several pipelines run on."""

from fieldwatch.cli.kit import DataFinding, MachineCheck
from fieldwatch.recon.render import native_available


def check_kernels() -> MachineCheck:
    """Check whether the native kernels are built, or can be."""
    available, why = native_available()
    facts = {"native_kernels": available, "native_kernels_reason": why or None}
    if available:
        return MachineCheck(facts=facts, label="kernels", text="native, built")
    missing = DataFinding(
        name="kernels",
        severity="warning",
        message=f"the native kernels are not available: {why}",
        remedy="install a C compiler (gcc or clang): without them a CPU trains splats and normals far slower",
    )
    return MachineCheck(facts=facts, label="kernels", text=f"no: {why}", findings=(missing,))
