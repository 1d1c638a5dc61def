"""Keeping and forgetting: trim, retention, erasure, deletion, size."""
