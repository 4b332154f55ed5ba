"""Each activation of a file run alone: its own nodes against its definition, over all values of a dtype."""
