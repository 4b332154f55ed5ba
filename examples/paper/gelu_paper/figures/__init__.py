"""The paper's figures 1 to 7, drawn from records."""
