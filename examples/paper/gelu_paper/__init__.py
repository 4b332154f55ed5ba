"""The GELU paper's experiments: grids of runs, medians over seeds, tables and figures, made with lit-gelu."""
