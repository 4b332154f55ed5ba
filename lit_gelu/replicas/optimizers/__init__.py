"""The optimizers of all members, to the bit as each alone."""
