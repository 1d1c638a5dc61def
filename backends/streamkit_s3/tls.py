"""TLS to one server: the certificates that a client trusts, and the session with which its next connection goes on."""

from __future__ import annotations

import os.path
import re
import ssl
from socket import socket

__all__ = ["Tls"]

_AWS = b".amazonaws.com"
_LIKELY = re.compile(
    rb"\n# Subject: CN=(?:Amazon Root CA|Starfield Services Root)\b[^\n]*\n(?:#[^\n]*\n)*"
    rb"(-----BEGIN CERTIFICATE-----\n[^-]+-----END CERTIFICATE-----\n)"
)
"""The roots of Amazon's servers, in the file of Mozilla's roots, which names each one."""


class Tls:
    """Safe to share between threads.

    It takes longer to load all roots than to append to a log. So Amazon's roots are loaded for its servers, and all
    roots if these do not vouch for the server.
    """

    def __init__(self, ca: str, host: bytes) -> None:
        """`ca`: the file or folder of certificates to trust. `host`: as DNS has it. OSError if `ca` cannot be read."""
        self._ca = ca
        self._host = host
        likely = _likely_roots(ca) if host.endswith(_AWS) else ""
        self._likely = _context(cadata=likely) if likely else None
        """Trusts Amazon's roots alone."""
        self._context = self._likely or self._all_roots()
        self._latest: tuple[ssl.SSLContext | None, ssl.SSLSession | None] = None, None
        """The latest session and its context."""

    def wrap(self, connection: socket) -> ssl.SSLSocket | None:
        """The connection after the handshake. OSError if it fails.

        None if the server's certificate is of another root than Amazon's: on another connection all roots count.
        """
        context, (owner, session) = self._context, self._latest
        try:
            return context.wrap_socket(
                connection, server_hostname=self._host, session=session if owner is context else None
            )
        except ssl.SSLCertVerificationError:
            if context is not self._likely:
                raise
        self._context = self._all_roots()
        return None

    def keep(self, connection: socket) -> None:
        """Keep the session of a connection that has received an answer: the next handshake needs no certificates."""
        context, session = self._latest
        if not isinstance(connection, ssl.SSLSocket) or connection.session_reused:
            return
        if context is connection.context and session is None:
            return  # the server has given none before
        found = connection.session
        self._latest = connection.context, found if found is not None and found.has_ticket else None

    def _all_roots(self) -> ssl.SSLContext:
        return _context(capath=self._ca) if os.path.isdir(self._ca) else _context(cafile=self._ca)


def _likely_roots(ca: str) -> str:
    if os.path.isdir(ca):
        return ""
    with open(ca, "rb") as file:
        return b"".join(_LIKELY.findall(file.read())).decode("ascii", "replace")


def _context(cafile: str | None = None, capath: str | None = None, cadata: str | None = None) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_verify_locations(cafile, capath, cadata)
    return context
