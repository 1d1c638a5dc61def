"""Webhooks: where they may go, how they are signed, and how one is sent."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import http.client
import ipaddress
import socket
import ssl
import threading
import time
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec

from ...base64url import decode_base64url, encode_base64url
from ...errors import MissingDependency
from .state import Refused

__all__ = ["Signer", "Target", "send"]

_SECONDS = 30.0
_MOST_ANSWER = 64 << 10


class Target(NamedTuple):
    """The address of a webhook."""

    scheme: str
    host: str
    port: int
    path: str

    @property
    def is_development(self) -> bool:
        """True for http:// on this machine, which the protocol allows for development."""
        return self.scheme == "http"


def check_url(url: str, *, loopback: bool) -> Target:
    """The target of a webhook's URL. Refused if it could reach a private network.

    `loopback`: http://localhost and http://127.0.0.x are allowed.
    """
    try:
        found = urlsplit(url)
        host, port = found.hostname or "", found.port
    except ValueError:
        raise _rejected("it is malformed") from None
    try:
        host.encode("idna")  # as the resolver does: a part of a name has at most 63 characters
    except UnicodeError:
        raise _rejected("its host is no name of a machine") from None
    if (
        not host
        or len(host) > 253
        or found.username is not None
        or found.fragment
        or not url.isascii()
        or not url.isprintable()
    ):
        raise _rejected("it must be https://host/path, without user, fragment and characters that are not ASCII")
    path = (found.path or "/") + (f"?{found.query}" if found.query else "")
    if found.scheme == "http" and loopback and (host == "localhost" or host.startswith("127.0.0.")):
        return Target("http", host, port or 80, path)
    if found.scheme != "https":
        raise _rejected("it must begin with https://")
    try:
        allowed = is_public(ipaddress.ip_address(host))
    except ValueError:
        allowed = "." in host and not host.lower().endswith((".localhost", ".local", ".internal"))
    if not allowed:
        raise _rejected("it leads into a private network")
    return Target("https", host, port or 443, path)


def _rejected(why: str) -> Refused:
    return Refused(400, f"the webhook's URL is refused: {why}", code="WEBHOOK_URL_REJECTED")


class _Pinned(http.client.HTTPSConnection):
    """Connects to one address, and checks the certificate of the name."""

    def __init__(self, address: str, target: Target) -> None:
        super().__init__(target.host, target.port, timeout=_SECONDS, context=ssl.create_default_context())
        self._address = address
        self._context = ssl.create_default_context()

    def connect(self) -> None:
        plain = socket.create_connection((self._address, self.port), _SECONDS)
        self.sock = self._context.wrap_socket(plain, server_hostname=self.host)


def is_public(address: ipaddress.IPv4Address | ipaddress.IPv6Address) -> bool:
    """True if an address leads to one machine of the public Internet, without a detour to another one."""
    if not address.is_global or address.is_multicast or address.is_reserved:
        return False
    if isinstance(address, ipaddress.IPv4Address):
        return True
    return address.sixtofour is None  # other translated addresses are reserved, or not global


def _address(target: Target) -> str:
    """An address of the host that may be contacted. OSError if there is none: a name can lead anywhere at any time."""
    for *_, where in socket.getaddrinfo(target.host, target.port, type=socket.SOCK_STREAM):
        address = ipaddress.ip_address(str(where[0]))
        if address.is_loopback if target.is_development else is_public(address):
            return str(address)
    raise OSError("the webhook's host has no address that may be contacted")


def send(target: Target, body: bytes, signature: str) -> Any:
    """POST `body`; return the answer if it is JSON. OSError unless the answer is 2xx. Redirects are not followed."""
    try:
        address = _address(target)
    except UnicodeError as error:
        raise OSError("the webhook's host is no name of a machine") from error
    connection = (
        http.client.HTTPConnection(address, target.port, timeout=_SECONDS)
        if target.is_development
        else _Pinned(address, target)
    )
    # The timeout of a socket restarts with each byte: a target could hold the thread for ever.
    late = threading.Event()
    timer = threading.Timer(_SECONDS, _cut, (connection, late))
    timer.daemon = True
    timer.start()
    try:
        host = target.host if target.port in (80, 443) else f"{target.host}:{target.port}"
        headers = {"Host": host, "Content-Type": "application/json", "Webhook-Signature": signature}
        connection.request("POST", target.path, body, headers)
        response = connection.getresponse()
        answer = response.read(_MOST_ANSWER)
        if late.is_set():
            raise OSError(f"the webhook did not answer within {_SECONDS:g} seconds")
        if not 200 <= response.status < 300:
            raise OSError(f"the webhook answered {response.status}")
    except http.client.HTTPException as error:
        raise OSError(f"the webhook's answer is no HTTP: {type(error).__name__}") from error
    finally:
        timer.cancel()
        connection.close()
    try:
        return msgspec.json.decode(answer)
    except msgspec.DecodeError:
        return None


def _cut(connection: http.client.HTTPConnection, late: threading.Event) -> None:
    late.set()
    if connection.sock is not None:
        with contextlib.suppress(OSError):
            connection.sock.shutdown(socket.SHUT_RDWR)


class Signer:
    """A store's signing key: it signs webhooks, and the tokens of wakes."""

    def __init__(self, secret: bytes) -> None:
        """`secret`: the 32 bytes of an Ed25519 private key."""
        try:
            from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
            from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
        except ImportError as error:
            raise MissingDependency(
                "webhooks need cryptography: pip install 'streamkit-store[serve]'", name=error.name
            ) from error
        self._key = Ed25519PrivateKey.from_private_bytes(secret)
        public = self._key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self._token_key = hashlib.blake2b(b"streamkit wake token", key=secret, digest_size=32).digest()
        self.kid = "ds_" + hashlib.blake2b(public, digest_size=12).hexdigest()
        self.jwk = {
            "kty": "OKP",
            "crv": "Ed25519",
            "kid": self.kid,
            "use": "sig",
            "alg": "EdDSA",
            "x": encode_base64url(public),
        }

    def sign(self, body: bytes) -> str:
        """The value of the header Webhook-Signature."""
        now = int(time.time())
        signature = self._key.sign(b"%d." % now + body)
        return f"t={now},kid={self.kid},ed25519={encode_base64url(signature)}"

    def token(self, subscription: str, generation: int, wake: str) -> str:
        """The bearer token of a wake."""
        body = encode_base64url(msgspec.json.encode([subscription, generation, wake]))
        return f"{body}.{self._tag(body)}"

    def check(self, token: str, subscription: str) -> tuple[int, str]:
        """Generation and wake of a token. Refused with 401 if it is none of this subscription."""
        body, _, tag = token.partition(".")
        if not token.isascii() or not hmac.compare_digest(tag, self._tag(body)):
            raise Refused(401, "the token is not valid", code="TOKEN_INVALID")
        named, generation, wake = msgspec.json.decode(decode_base64url(body))
        if named != subscription:
            raise Refused(401, "the token belongs to another subscription", code="TOKEN_INVALID")
        return generation, wake

    def _tag(self, body: str) -> str:
        return encode_base64url(hmac.digest(self._token_key, body.encode(), "sha256"))


__all__ += ["check_url"]
