"""What the toolkit trains here: the parts of the domain, the pipelines made of them, and their commands."""
