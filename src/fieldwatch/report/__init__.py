"""Report: what to tell about a run, from its record alone; needs no torch."""
