"""Adapters for programs of others: each one is a module with its own extra, and uses the public interface only."""
