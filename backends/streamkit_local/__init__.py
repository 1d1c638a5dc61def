"""Streams on a local disk: append-only log files of each partition, and files of large rows.

    <path>/<uuid>/format                      marks the store; its format version
    <path>/<uuid>/<partition>/head            how far the partition's log is written and synced
    <path>/<uuid>/<partition>/<base>.log      records: rows and deletions; 8 MiB a file
    <path>/<uuid>/<partition>/<name>.row      one large row that was not put with NEXT
    <path>/<uuid>/leases/                     a partition too

Any number of threads and processes of one machine may read and write a store. Not for network file systems.
"""

from .driver import archive_place, connect

__all__ = ["archive_place", "connect"]
