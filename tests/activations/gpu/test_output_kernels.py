"""Kernels that keep the output and a bit: values, slopes, layouts and failures; see `interpreted_outputs`."""

import interpreted_checks

test_check = interpreted_checks.tests_of("interpreted_outputs.py")
