"""The index: a view of the log that tells where each segment's entries are. Private."""
