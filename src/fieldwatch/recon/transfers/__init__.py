"""Values that reach a GPU without making the host wait for it."""

from fieldwatch.recon.transfers.copies import constant, upload

__all__ = ["constant", "upload"]
