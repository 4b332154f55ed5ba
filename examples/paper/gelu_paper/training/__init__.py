"""Training one run, or several as a group, with its curves measured."""
