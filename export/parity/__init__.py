"""The proof beside a file: what it computes against what the module computes."""
