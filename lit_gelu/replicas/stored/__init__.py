"""A group in a checkpoint, and checkpoints of single members that are taken out of it."""
