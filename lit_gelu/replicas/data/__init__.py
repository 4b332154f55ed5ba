"""The data of a group: every replica's own order of samples, and several optimizer steps in one batch."""
