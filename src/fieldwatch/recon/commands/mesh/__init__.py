"""Commands on meshes, of any pipeline: texture, quality, comparison with the ground truth, pictures."""
