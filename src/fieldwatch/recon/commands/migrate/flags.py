"""Flags of ``fieldwatch migrate``; importing them needs no torch."""

from dataclasses import dataclass

import tyro


@dataclass(frozen=True, kw_only=True)
class MigrateFlags:
    """Translate a command line, or a file of settings, of the original scripts into the fieldwatch command.

    Example: fieldwatch migrate python train.py -s scene -c 3dgs_output -r dn_consistency --eval True

    Example: fieldwatch migrate config/diligent_bear.conf

    Example: fieldwatch migrate --run python exp_runner.py --conf config/bear.conf --obj_name bear

    LINE is a command line of SuGaR, 3DGS, PMNI or the dual-head HNeRV as you typed it, a .conf file of PMNI, or the
    cfg_args of a 3DGS model. Flags of migrate come before it. Printed are the command, and for each flag or key without
    a counterpart the reason. Words in capitals (RUN, MESH) are for you to fill in. docs/migrate.md has the tables.

    Exit codes: 0; 2 if the script is not known; with --run that of the command.
    """

    line: tyro.conf.Positional[tuple[str, ...]]
    """Original command line, or file."""
    run: bool = False
    """Run the command."""
    json: bool = False
    """Print the command and the notes as JSON, and nothing else on standard output."""
