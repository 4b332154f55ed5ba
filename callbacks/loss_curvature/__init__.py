"""`LossCurvatureMonitor`: the hooks, the batches that it probes with, and what it asks of the run."""
