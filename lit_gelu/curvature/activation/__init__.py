"""Statistics of what the activations of a live model are given."""
