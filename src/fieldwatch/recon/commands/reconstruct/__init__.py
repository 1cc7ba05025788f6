"""``fieldwatch reconstruct``: from a film, photos or normal maps to Gaussians and a textured mesh, in one command."""
