"""Foreground masks of the object that all cameras look at, without learned weights."""

from typing import TYPE_CHECKING

from fieldwatch.lazy import lazy_names

if TYPE_CHECKING:
    from fieldwatch.recon.data.masking.cut import minimum_cut
    from fieldwatch.recon.data.masking.error import MaskingError
    from fieldwatch.recon.data.masking.masks import LEAST_AGREEMENT, Masks, overlap, write_masks
    from fieldwatch.recon.data.masking.model import MaskAgreement

__all__ = ["LEAST_AGREEMENT", "MaskAgreement", "MaskingError", "Masks", "minimum_cut", "overlap", "write_masks"]

__getattr__, __dir__ = lazy_names(__name__)
