"""The log: records, the commit, the tail, reading and following. Private."""
