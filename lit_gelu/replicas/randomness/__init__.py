"""The random numbers of every replica: a stream of its own, and what dropout makes of it."""
