"""Code for the tests of this project only: sweeps, schedules, the oracle, broken backends, programs."""
