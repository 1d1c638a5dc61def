"""Signature version 4 of AWS, for S3: docs.aws.amazon.com, sig-v4-header-based-auth."""

from __future__ import annotations

import hashlib
import hmac
import time
from collections.abc import Mapping
from typing import Any

__all__ = ["Signer"]

_ALGORITHM = "AWS4-HMAC-SHA256"
_EMPTY = hashlib.sha256(b"").hexdigest()


class Signer:
    """Signs requests for a region. Keeps the key of the day. Safe to share between threads."""

    def __init__(self, region: str) -> None:
        self._region = region
        self._known: tuple[tuple[str, str], bytes] = (("", ""), b"")

    def sign(
        self, credentials: Any, method: str, path: str, query: str, headers: Mapping[str, str], body: bytes
    ) -> dict[str, str]:
        """`headers`, which hold the host, with those that prove the sender.

        `path` and `query` are encoded, and the query is sorted; names of headers are in lower case. `credentials` has
        an access_key, a secret_key and a token or None.
        """
        now = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        digest = hashlib.sha256(body).hexdigest() if body else _EMPTY
        signed = {**headers, "x-amz-content-sha256": digest, "x-amz-date": now}
        if credentials.token:
            signed["x-amz-security-token"] = credentials.token
        names = sorted(signed)
        listed = ";".join(names)
        lines = "".join(f"{name}:{signed[name]}\n" for name in names)
        request = f"{method}\n{path}\n{query}\n{lines}\n{listed}\n{digest}"
        scope = f"{now[:8]}/{self._region}/s3/aws4_request"
        text = f"{_ALGORITHM}\n{now}\n{scope}\n{hashlib.sha256(request.encode()).hexdigest()}"
        signature = _mac(self._key(credentials.secret_key, now[:8]), text).hex()
        signed["authorization"] = (
            f"{_ALGORITHM} Credential={credentials.access_key}/{scope}, SignedHeaders={listed}, Signature={signature}"
        )
        return signed

    def _key(self, secret: str, day: str) -> bytes:
        known, key = self._known
        if known != (secret, day):
            key = _mac(f"AWS4{secret}".encode(), day)
            for part in (self._region, "s3", "aws4_request"):
                key = _mac(key, part)
            self._known = (secret, day), key
        return key


def _mac(key: bytes, text: str) -> bytes:
    return hmac.digest(key, text.encode(), "sha256")
