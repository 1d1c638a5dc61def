"""The checks of `streamkit.testing.BackendConformance`, by subject."""
