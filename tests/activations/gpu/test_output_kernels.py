"""Kernels that keep the output and a bit: values, slopes, layouts and failures; see `interpreted_outputs`."""

import interpreted_checks

test_checks = interpreted_checks.tests_of("interpreted_outputs.py")
