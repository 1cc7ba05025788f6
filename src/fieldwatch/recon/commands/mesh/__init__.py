"""Commands on meshes, whichever pipeline made them: texture, quality, comparison with the truth, pictures."""
