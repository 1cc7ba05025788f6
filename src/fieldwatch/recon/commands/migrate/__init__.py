"""What the original scripts take, in the words of fieldwatch: flags and files of SuGaR, 3DGS, PMNI and dual-head HNeRV.

The training commands accept the original flags through these modules; ``fieldwatch migrate`` translates whole command
lines and files. Nothing outside of this package knows the original names.
"""
