"""What tests only this project: sweeps, schedules, the oracle, broken backends, programs that tests start."""
