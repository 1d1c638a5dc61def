"""Parse an s3:// URL. Each error names the fault, and never shows a secret."""

from __future__ import annotations

import re

from streamkit.backend import split_url, unescape, url_options

from .errors import Target
from .layout import LONGEST_PREFIX

__all__ = ["target_of"]

_REGION = re.compile(r"[a-z0-9-]{1,40}")
_ADDRESS = re.compile(r"\d+\.\d+\.\d+\.\d+")
_FORM = "s3://bucket/prefix or s3://bucket?endpoint_url=http://127.0.0.1:9000"


def target_of(url: str) -> tuple[Target, str]:
    """The bucket, and the prefix in it, of `s3://bucket[/prefix][?endpoint_url=...][&region=...]`.

    ValueError for another URL.
    """
    try:
        parts = split_url(url)
    except ValueError as error:
        raise ValueError(f"{error}; expected a URL such as {_FORM}") from None
    if parts.scheme != "s3":
        raise ValueError(f"expected a URL such as {_FORM}, not one of another scheme")
    if "@" in parts.netloc:
        raise ValueError(
            "an s3:// URL holds no credentials; put them where boto3 looks: the environment, a profile, or a role"
        )
    if parts.fragment:
        raise ValueError("an s3:// URL has no fragment: write # as %23")
    options = url_options(url, ("endpoint_url", "region"))
    region = options.get("region")
    if region is not None and not _REGION.fullmatch(region):
        raise ValueError("region in an s3:// URL is a name such as eu-central-1: correct it")
    endpoint = options.get("endpoint_url")
    if endpoint is not None:
        _check_endpoint(endpoint)
    if rule := _broken_rule(parts.netloc, aws=endpoint is None):
        raise ValueError(f"{rule}; expected a URL such as {_FORM}")
    prefix = unescape(parts.path).strip("/")
    if prefix:
        _check_prefix(prefix)
    return Target(parts.netloc, region, endpoint), prefix


def _broken_rule(bucket: str, aws: bool) -> str | None:
    """Name the rule for names of buckets that the name breaks; None if it breaks none. Servers other than AWS allow
    more."""
    if not bucket:
        return "the URL names no bucket between s3:// and the next /"
    shown = "the URL names no bucket that can exist:"
    if ":" in bucket:
        return f"{shown} a host and its port are named by ?endpoint_url=http://host:port"
    if wrong := re.search(r"[^A-Za-z0-9._-]", bucket):
        return f"{shown} {wrong[0]!r} is no character of a bucket's name"
    if bucket.endswith("--x-s3"):
        return "the bucket is an S3 Express directory bucket, whose lists have no order: use a general purpose bucket"
    if not 3 <= len(bucket) <= (63 if aws else 255):
        return f"{shown} a name has 3 to {63 if aws else 255} characters, this one has {len(bucket)}"
    if not (bucket[0].isalnum() and bucket[-1].isalnum()):
        return f"{shown} a name begins and ends with a letter or a digit"
    if not aws:
        return None
    if wrong := re.search(r"[A-Z_]", bucket):
        what = "an underscore" if wrong[0] == "_" else "a capital letter"
        return (
            f"{shown} it has {what}, which AWS does not take (another server, or a bucket older than 2018, is named "
            "with endpoint_url, such as https://s3.us-east-1.amazonaws.com)"
        )
    if ".." in bucket:
        return f"{shown} it has two dots side by side"
    if _ADDRESS.fullmatch(bucket):
        return f"{shown} it is an address; a server is named by ?endpoint_url=http://{bucket}"
    return None


def _check_prefix(prefix: str) -> None:
    size = len(prefix.encode())
    if size > LONGEST_PREFIX:
        raise ValueError(
            f"the prefix of an s3:// URL has at most {LONGEST_PREFIX} bytes, or long names would not fit into the "
            f"1024 bytes of an S3 key; this one has {size}"
        )
    if any(part in ("", ".", "..") for part in prefix.split("/")) or not prefix.isprintable():
        raise ValueError("the prefix of an s3:// URL has printable characters only, and no empty, '.' or '..' part")


def _check_endpoint(endpoint: str) -> None:
    parts = split_url(endpoint)
    if "@" in parts.netloc:
        raise ValueError("endpoint_url holds no credentials; put them where boto3 looks for them")
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.query or parts.fragment:
        raise ValueError("endpoint_url is http(s)://host[:port], without a query or a fragment: correct it")
