"""What the doctor says about the native kernels, which several pipelines run on."""

from fieldwatch.cli.kit import DataFinding, MachineCheck
from fieldwatch.recon.render import native_available, native_note


def check_kernels() -> MachineCheck:
    """Check whether the native kernels are built, or can be."""
    available, why = native_available()
    note = native_note()
    facts = {"native_kernels": available, "native_kernels_reason": why or note}
    if note is None:
        return MachineCheck(facts=facts, label="kernels", text="native, built")
    text = "native, built; one thread" if available else f"no: {why}"
    remedy = "install a C compiler with OpenMP (gcc, or clang with libomp): a CPU then trains splats and normals faster"
    finding = DataFinding(name="kernels", severity="warning", message=note, remedy=remedy)
    return MachineCheck(facts=facts, label="kernels", text=text, findings=(finding,))
