"""What is kept of runs: one record each, in folders that one process writes and several may be read of."""
