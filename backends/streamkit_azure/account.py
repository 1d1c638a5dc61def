"""Parse a URL into a storage account and its credentials. Nothing here does I/O or imports an SDK."""

from __future__ import annotations

import binascii
import os
import re
from base64 import b64decode
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from urllib.parse import SplitResult, quote
from uuid import UUID

from streamkit.backend import split_url, unescape, url_options

__all__ = ["ARCHIVE", "Account", "account_of", "archive_place"]

ARCHIVE = "archive"
"""The folder in the container, beside the stores', for the archives of all of them."""

_PREFIX = re.compile(r"[a-z][a-z0-9]{2,30}")
_CONTAINER = re.compile(r"[a-z0-9][a-z0-9-]{1,61}[a-z0-9]")
_ACCOUNT = re.compile(r"[a-z0-9]{3,24}")
_HOST = re.compile(r"[A-Za-z0-9.-]+")
_SUFFIX = "core.windows.net"
_EMULATOR = "devstoreaccount1"
# The key that Microsoft documents for every emulator: no secret.
_EMULATOR_KEY = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="


@dataclass(frozen=True)
class Account:
    """A storage account and the names of our tables and blobs in it. Without `key` and `sas`, the environment's Entra
    identity is used."""

    name: str
    prefix: str
    tables: str
    """The endpoint of the table service."""
    blobs: str
    """The endpoint of the blob service."""
    key: str = field(default="", repr=False)
    sas: str = field(default="", repr=False)

    @property
    def container(self) -> str:
        """The blob container: values and leases of all stores."""
        return self.prefix

    def archive_options(self) -> dict[str, str]:
        """delta-rs storage options. Without key and token, delta-rs finds an identity in the environment."""
        options = {"azure_storage_account_name": self.name, "azure_storage_endpoint": self.blobs}
        if self.key:
            options["azure_storage_account_key"] = self.key
        elif self.sas:
            options["azure_storage_sas_token"] = self.sas
        if self.blobs.startswith("http://"):
            options["allow_http"] = "true"
        return options

    def table(self, store: UUID) -> str:
        """The store's table."""
        return self.prefix + store.hex

    def store(self, table: str) -> UUID | None:
        """The store of a table; None for a foreign table."""
        found = re.fullmatch(re.escape(self.prefix) + "([0-9a-f]{32})", table)
        return UUID(found[1]) if found else None


def account_of(url: str, environ: Mapping[str, str] = os.environ) -> Account:
    """The account of an azure:// or azurite:// URL. ValueError, which never shows a secret, for another URL."""
    parts = _checked_parts(url)
    prefix = unescape(parts.path).strip("/") or "streamkit"
    if not _PREFIX.fullmatch(prefix):
        raise ValueError(
            "the prefix in the store URL cannot name Azure tables and a container: "
            "it has 3 to 31 lower-case letters and digits, a letter first"
        )
    return replace(_account(url, parts, environ), prefix=prefix)


def archive_place(url: str) -> tuple[str, dict[str, str]]:
    """Return the place of archives with a URL of their own, in the form of `ArchiveHost.archive_root`. Raises
    ValueError for another URL.

    `azure://account/container/path` and `azurite:///container/path` name the account. `az://container/path` is in the
    account of the store, or else in the one that delta-rs finds in the environment.
    """
    parts = _checked_parts(url)
    path = unescape(parts.path).strip("/")
    if parts.scheme == "az":
        url_options(url, ())
        container, options = parts.netloc, {}
    else:
        container, _, path = path.partition("/")
        options = _account(url, parts, os.environ).archive_options()
    if not _CONTAINER.fullmatch(container) or "--" in container:
        raise ValueError(
            "the archive URL names no container: a container's name has 3 to 63 lower-case letters, digits and single "
            "hyphens, with a letter or a digit first and last"
        )
    if (any(part in ("", ".", "..") for part in path.split("/")) and path) or not path.isprintable():
        raise ValueError("the path of an archive URL has printable characters only, and no empty, '.' or '..' part")
    if re.search("%[0-9A-Fa-f]{2}", path):
        raise ValueError("delta-rs cannot read a path that has % and two hex digits in its name: use another path")
    return f"az://{container}/{quote(path)}".rstrip("/"), options


def _checked_parts(url: str) -> SplitResult:
    parts = split_url(url)
    if parts.fragment or "@" in parts.netloc:
        raise ValueError(
            "a URL for Azure holds no user, password or fragment; give credentials in AZURE_STORAGE_KEY, "
            "AZURE_STORAGE_SAS_TOKEN or AZURE_STORAGE_CONNECTION_STRING"
        )
    return parts


def _account(url: str, parts: SplitResult, environ: Mapping[str, str]) -> Account:
    if parts.scheme == "azurite":
        return _azurite(url, parts.netloc, environ)
    if parts.scheme == "azure":
        return _azure(url, parts.netloc, environ)
    raise ValueError("expected azure://account/prefix or azurite:///prefix, not a URL of another scheme")


def _azure(url: str, name: str, environ: Mapping[str, str]) -> Account:
    if not _ACCOUNT.fullmatch(name):
        raise ValueError(
            "expected azure://account/... with the name of a storage account: 3 to 24 lower-case letters and digits"
        )
    suffix = url_options(url, ("endpoint_suffix",)).get("endpoint_suffix", _SUFFIX)
    if not _HOST.fullmatch(suffix):
        raise ValueError(f"the option 'endpoint_suffix' is a domain such as {_SUFFIX}: correct it")
    if text := environ.get("AZURE_STORAGE_CONNECTION_STRING"):
        account = _connection("AZURE_STORAGE_CONNECTION_STRING", text, name, suffix)
        if account.name != name:
            raise ValueError(
                f"AZURE_STORAGE_CONNECTION_STRING is for the account {account.name!r}, the store URL names {name!r}; "
                "change one of them, or unset the variable to use other credentials"
            )
        return account
    account = Account(name, "", f"https://{name}.table.{suffix}", f"https://{name}.blob.{suffix}")
    if key := environ.get("AZURE_STORAGE_KEY"):
        return replace(account, key=_checked("AZURE_STORAGE_KEY", key))
    return replace(account, sas=environ.get("AZURE_STORAGE_SAS_TOKEN", "").lstrip("?"))


def _azurite(url: str, netloc: str, environ: Mapping[str, str]) -> Account:
    if netloc:
        raise ValueError("expected azurite:///prefix; host and ports are the options host, blob_port and table_port")
    options = url_options(url, ("host", "blob_port", "table_port"))
    text = environ.get("AZURITE_CONNECTION_STRING")
    if text and not options and text.lower().rstrip(";") != "usedevelopmentstorage=true":
        return _connection("AZURITE_CONNECTION_STRING", text, _EMULATOR, _SUFFIX)
    host = options.get("host", "127.0.0.1")
    if not _HOST.fullmatch(host):
        raise ValueError("the option 'host' is a host name or an address: correct it")
    ports = {"blob_port": options.get("blob_port", "10000"), "table_port": options.get("table_port", "10002")}
    for option, port in ports.items():
        if not port.isdecimal() or not 0 < int(port) < 1 << 16:
            raise ValueError(f"the option {option!r} is a port from 1 to 65535: correct it")
    tables, blobs = (f"http://{host}:{ports[port]}/{_EMULATOR}" for port in ("table_port", "blob_port"))
    return Account(_EMULATOR, "", tables, blobs, key=_EMULATOR_KEY)


def _connection(variable: str, text: str, name: str, suffix: str) -> Account:
    parts = dict(part.split("=", 1) for part in text.strip().strip(";").split(";") if "=" in part)
    parts = {key.strip().lower(): value for key, value in parts.items()}
    name = parts.get("accountname", name)
    base = parts.get("endpointsuffix", suffix)
    scheme = parts.get("defaultendpointsprotocol", "https")
    account = Account(
        name,
        "",
        _endpoint(variable, parts.get("tableendpoint", f"{scheme}://{name}.table.{base}")),
        _endpoint(variable, parts.get("blobendpoint", f"{scheme}://{name}.blob.{base}")),
    )
    if key := parts.get("accountkey"):
        return replace(account, key=_checked(variable, key))
    if sas := parts.get("sharedaccesssignature"):
        return replace(account, sas=sas.lstrip("?"))
    raise ValueError(
        f"{variable} has neither AccountKey nor SharedAccessSignature; copy the whole connection string from the "
        "account's access keys"
    )


def _endpoint(variable: str, text: str) -> str:
    """The endpoint of a service, which errors and reprs show: a pasted URL may end with a token."""
    with suppress(ValueError):
        parts = split_url(text)
        if parts.scheme in ("http", "https") and parts.hostname and not set(text) & set("@?#"):
            return text.rstrip("/")
    raise ValueError(
        f"{variable} has an endpoint that is not http(s)://host[:port][/path]: an endpoint holds no credentials and no "
        "query; a token belongs behind SharedAccessSignature="
    )


def _checked(variable: str, key: str) -> str:
    try:
        b64decode(key, validate=True)
    except binascii.Error:
        raise ValueError(f"the account key in {variable} is not base64; copy it again") from None
    return key
