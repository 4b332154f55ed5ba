"""The 0-I map's kernel: its draws, gradients and seeds; see `interpreted_zero_identity`."""

import interpreted_checks

test_checks = interpreted_checks.tests_of("interpreted_zero_identity.py")
