"""Small runs with a known verdict: plants hold one fault each, healthy runs hold none. Half b is held out."""
