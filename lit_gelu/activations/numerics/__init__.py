"""What the formulas of the families are made of: checks of arguments, gates, compensated sums, channels, memory."""
