"""The public keys at a JWKS URL. They are fetched when a token needs them, and kept while the URL does not answer."""

from __future__ import annotations

import asyncio
import http.client
import logging
import urllib.request
from typing import Any
from urllib.parse import urlsplit

import jwt
import msgspec

from ..clock import Clock
from ..decoders import json_decoder
from .problems import Problem

__all__ = ["KeySet", "PublicKey"]

_log = logging.getLogger("streamkit.serve")
_FRESH = 300.0
"""Seconds after which the keys are fetched again, while requests go on with the present ones."""
_OLD = 600.0
"""Seconds after which a request waits for the new keys."""
_STALE = 3600.0
"""Seconds after which the keys verify nothing any more, if the URL does not answer."""
_PAUSE = 10.0
"""Seconds between two fetches for a key that is not among the known ones."""
_RETRY = 1.0
"""Seconds between two tries while no keys are known."""
_TIMEOUT = 10.0
_MOST = 1 << 20
_ALGORITHMS = {
    "RSA": ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512"),
    "EC": ("ES256", "ES384", "ES512"),
    "OKP": ("EdDSA",),
}
"""The algorithms that a key without `alg` verifies, by its type."""


class PublicKey(msgspec.Struct, frozen=True):
    """A key, and the algorithms that it verifies."""

    key: Any
    algorithms: tuple[str, ...]


class _Keys(msgspec.Struct):
    keys: list[dict[str, Any]]


class KeySet:
    """The keys of one URL, by their ids. `clock`: by which they grow old."""

    def __init__(self, url: str, clock: Clock) -> None:
        if urlsplit(url).scheme not in ("https", "http") or not urlsplit(url).hostname:
            raise ValueError("the URL of the keys (JWKS) begins with https://, or with http:// in a network you trust")
        self._url = url
        self._clock = clock
        self._keys: dict[str | None, PublicKey] | None = None
        self._fetched = self._asked = 0.0
        self._fetching: asyncio.Task[None] | None = None

    async def find(self, kid: str | None) -> PublicKey | None:
        """The key with this id; None if there is none. A Problem if no keys can be had."""
        now = self._clock.monotonic()
        age = now - self._fetched
        if self._keys is None or age >= _OLD:
            if self._keys is None or now - self._asked >= _RETRY:
                await self._fetch(_RETRY)
        elif kid not in self._keys:
            await self._fetch(_PAUSE)
        elif age >= _FRESH:
            self._begin(_PAUSE)
        if self._keys is None or self._clock.monotonic() - self._fetched >= _STALE:
            raise Problem(
                "token-keys-unavailable",
                "the keys that verify tokens cannot be fetched now; send the request again later",
                headers=((b"retry-after", b"2"),),
            )
        return self._keys.get(kid)

    async def _fetch(self, pause: float) -> None:
        """Fetch the keys unless that was tried less than `pause` ago. Concurrent callers share one fetch."""
        fetching = self._begin(pause)
        if fetching is not None:
            await asyncio.wait((fetching,))

    def _begin(self, pause: float) -> asyncio.Task[None] | None:
        running = self._fetching
        if running is not None and not running.done() and running.get_loop() is asyncio.get_running_loop():
            return running
        now = self._clock.monotonic()
        if self._asked and now - self._asked < pause:
            return None
        self._asked = now
        self._fetching = asyncio.create_task(self._run())
        return self._fetching

    async def _run(self) -> None:
        try:
            self._keys = await asyncio.to_thread(_read, self._url)
            self._fetched = self._clock.monotonic()
        except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
            # The text of an error may hold the URL, and that may hold a password.
            _log.warning("the keys that verify tokens could not be fetched: %s", type(error).__name__)


def _read(url: str) -> dict[str | None, PublicKey]:
    """The keys at the URL that verify signatures. A key without an id is found by None, as is an only one."""
    request = urllib.request.Request(url, headers={"Accept": "application/json"})
    with urllib.request.urlopen(request, timeout=_TIMEOUT) as answer:
        data = answer.read(_MOST)  # a longer answer is cut, so it is no JSON
    found: dict[str | None, PublicKey] = {}
    for jwk in json_decoder(_Keys).decode(data).keys:
        key = _key_of(jwk)
        if key is not None:
            kid = jwk.get("kid")
            found[kid if isinstance(kid, str) else None] = key
    if not found:
        raise ValueError("the set has no key that verifies signatures")
    if len(found) == 1:
        found.setdefault(None, next(iter(found.values())))
    return found


def _key_of(jwk: dict[str, Any]) -> PublicKey | None:
    """None for a key that is for something else, is secret, or is damaged."""
    kind = jwk.get("kty")
    if not isinstance(kind, str) or kind not in _ALGORITHMS or jwk.get("use", "sig") != "sig":
        return None
    named = jwk.get("alg")
    algorithms = _ALGORITHMS[kind] if named is None else (named,)
    if not set(algorithms) <= set(_ALGORITHMS[kind]):
        return None
    try:
        return PublicKey(jwt.PyJWK(jwk).key, algorithms)
    except (jwt.PyJWTError, ValueError, TypeError):
        return None
