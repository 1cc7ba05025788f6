"""Search for the visible sections of rays in a neural SDF, in one native kernel."""

from fieldwatch.recon.render.sdf_search.sections import (
    FAINT,
    SectionSearch,
    VisibleSections,
    searches_natively,
    visible_sections,
)

__all__ = ["FAINT", "SectionSearch", "VisibleSections", "searches_natively", "visible_sections"]
