"""The checks of `streamkit.testing.StoreConformance`, one file for each part of the public contract."""
