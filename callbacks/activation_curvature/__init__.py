"""`ActivationCurvatureMonitor`: the hooks, and what it writes to loggers."""
