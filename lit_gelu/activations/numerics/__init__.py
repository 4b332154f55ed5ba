"""What the formulas of the families are made of: checks of arguments, gates, sums, channels, memory, grids."""
