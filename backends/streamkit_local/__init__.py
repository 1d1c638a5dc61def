"""Streams on a local disk: an append-only log of each partition, and an LMDB index of each store.

    <path>/<uuid>/format                        marks the store; its format version; lock of the index
    <path>/<uuid>/index/                        LMDB: rows, where appended rows are, leases
    <path>/<uuid>/index/pages                   the checksum of each of its pages
    <path>/<uuid>/log/<partition>/head          how far the partition's log is written and synced
    <path>/<uuid>/log/<partition>/<base>.log    appended rows, 64 MiB a file

Any number of threads and processes of one machine may read and write a store. Not for network file systems.
"""

from .driver import connect

__all__ = ["connect"]
