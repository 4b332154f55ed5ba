"""Steps on a CPU: member by member, forward and backward written out, into memory that is kept."""
