"""Check of the LPIPS weights for ``fieldwatch doctor``."""

from fieldwatch.cli.kit import MachineCheck
from fieldwatch.recon.losses import find_lpips_files


def check_lpips() -> MachineCheck:
    """Check whether the two weight files of LPIPS are on disk; if not, tell how to get them."""
    files = find_lpips_files()
    # Not a finding: splats train without LPIPS, and every other metric is measured.
    text = f"not measured: {files.missing}: {files.remedy}" if files.missing else f"measured with {files.features}"
    return MachineCheck(facts={"lpips": not files.missing}, label="LPIPS", text=text)
