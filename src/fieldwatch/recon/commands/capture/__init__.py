"""Cameras for a film or a folder of photos: ``fieldwatch data photos``, and for trainings that are given one."""
