"""Eight loops that nobody here wrote, with fieldwatch."""
