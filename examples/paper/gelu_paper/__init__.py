"""The GELU paper's protocol: grids of runs, seeds, selection, tables and figures."""
