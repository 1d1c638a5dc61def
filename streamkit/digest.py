"""BLAKE2b, as hashlib has it. hashlib would also load OpenSSL, which takes longer than a cold append has for it."""

try:
    from _blake2 import blake2b
except ImportError:
    from hashlib import blake2b

__all__ = ["blake2b"]
