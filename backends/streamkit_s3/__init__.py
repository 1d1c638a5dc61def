"""Stores on Amazon S3, and on every S3-compatible service that honours conditional writes and lists in key order.

`s3://bucket[/prefix][?endpoint_url=https://host][&region=name]`; credentials come from boto3's own chain (environment,
profile, role of the function or machine), never from the URL.

One row is one object, and one PUT with `If-None-Match: *` is a whole commit:

| object, below `<prefix>/<store>/` | meaning |
|---|---|
| `p.<partition>/<key>` | a row; the key in a base64 whose order as text is the order of the bytes |
| `h.<partition>/<key>` | the same, where the partition is too long: its beginning and a digest |
| `leases/<name>` | a lease; it stays when released, so that its token grows for ever |
| `FORMAT` | says that this is a store and in which format; objects beside these are left alone |

A request is signed and sent without boto3's client, which takes three times as much processor time. That client stays
for what the lean one does not know: `service.py` tells it.

The first write to a new store finds out whether the service honours conditional writes, and refuses to go on if not.
Not for S3 Express One Zone (directory buckets), whose lists have no order.
"""

from __future__ import annotations

from .driver import S3Driver, archive_place, connect

__all__ = ["S3Driver", "archive_place", "connect"]
