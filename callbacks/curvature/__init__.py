"""What the curvature monitors are made of."""
