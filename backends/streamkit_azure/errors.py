"""Translate errors of Azure and its SDK. Their messages are dropped, because they may hold a signature."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from email.utils import parsedate_to_datetime
from typing import Any

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError
from azure.data.tables import RequestTooLargeError
from urllib3.exceptions import ConnectTimeoutError, HTTPError, NameResolutionError, NewConnectionError

from streamkit.backend import Ambiguous
from streamkit.errors import AccessDenied, PermanentError, StreamkitError, Throttled, Unavailable
from streamkit.reentry import Reentered

__all__ = ["code_of", "foreign", "mapped"]

_ROLES = "give this identity the roles Storage Table Data Contributor and Storage Blob Data Contributor"
_ACCESS = {
    "AuthenticationFailed": "the key or SAS token is wrong, was replaced, or has expired",
    "NoAuthenticationInformation": "the request carried no credentials",
    "InvalidAuthenticationInfo": "the credentials are malformed or have expired",
    "AuthorizationPermissionMismatch": _ROLES,
    "AuthorizationFailure": "the key or SAS token is wrong or has expired, or the account's firewall refuses this "
    "address, or " + _ROLES,
    "AuthorizationServiceMismatch": "the SAS token must be for both services, blob and table (ss=bt)",
    "AuthorizationResourceTypeMismatch": "the SAS token must be for services, containers and objects (srt=sco)",
    "InsufficientAccountPermissions": "the SAS token or identity lacks a permission",
    "KeyBasedAuthenticationNotPermitted": "the account takes no keys: unset AZURE_STORAGE_KEY, and " + _ROLES,
    "AccountIsDisabled": "the account is disabled",
}
_SKEW = 300.0
"""Seconds between this machine's clock and the service's that are worth mentioning; Azure refuses from 900 on."""


def code_of(error: BaseException) -> str:
    """Azure's name of the error, or ""."""
    code = getattr(error, "error_code", None)
    if code is None and isinstance(error, HttpResponseError) and error.response is not None:
        code = _code_in(error.response)  # where an entity is created the SDK does not look for it
    return str(getattr(code, "value", code) or "")


def _code_in(response: Any) -> str:
    try:
        return str(response.headers.get("x-ms-error-code") or json.loads(response.text())["odata.error"]["code"])
    except (ValueError, LookupError, TypeError, AttributeError):
        return ""


@contextmanager
def foreign(where: str, *, writing: bool = False) -> Iterator[None]:
    """Nothing that the SDK raises leaves the block. `where` is the endpoint, for the message."""
    handled = sys.exception()
    try:
        yield
    except (StreamkitError, Reentered):
        raise
    except Exception as error:  # the SDK's parsers raise errors of any class for a malformed answer
        raise mapped(error, where, handled, writing=writing) from None


def mapped(error: Exception, where: str, handled: BaseException | None = None, *, writing: bool) -> StreamkitError:
    """The error to raise instead. With `writing`, an error whose write may have been applied is Ambiguous.

    `handled`: the exception that was being handled when the call began. A caller that tries again in an `except` clause
    makes the earlier failure the context of this one; it says nothing about this one.
    """
    if isinstance(error, HttpResponseError) and error.status_code:
        return _refused(error, where, error.status_code, writing)
    causes = list(_causes(error, handled))
    # Where an entity is created the SDK fails over such an error.
    if credentials := next((cause for cause in causes if isinstance(cause, ClientAuthenticationError)), None):
        return AccessDenied(
            f"no usable credentials for {where} ({type(credentials).__name__}): set AZURE_STORAGE_CONNECTION_STRING, "
            "AZURE_STORAGE_KEY or AZURE_STORAGE_SAS_TOKEN, or sign in (az login, a managed identity)"
        )
    if any(isinstance(cause, NameResolutionError) for cause in causes):
        return Unavailable(f"the host of {where} was not found: check the account's name and the network")
    if any(isinstance(cause, NewConnectionError | ConnectTimeoutError) for cause in causes):
        return Unavailable(f"no connection to {where}: check the endpoint, the network and the account's firewall")
    if isinstance(error, AzureError | HTTPError | OSError):
        return _lost(f"the connection to {where} broke ({type(error).__name__})", writing)
    return _lost(f"the answer of {where} is not one of Azure Storage ({type(error).__name__})", writing)


def _lost(what: str, writing: bool) -> StreamkitError:
    return Ambiguous(f"{what} while a write was under way") if writing else Unavailable(what)


def _refused(error: HttpResponseError, where: str, status: int, writing: bool) -> StreamkitError:
    code = code_of(error)
    answer = f"{where} answered {status} {code}".rstrip()
    if status in (401, 403):
        hint = _ACCESS.get(code, "check the credentials and permissions")
        return AccessDenied(f"{answer}: {hint}{_skew(error)}")
    # A write that timed out there may have been applied.
    if status == 429 or (status == 503 and (code == "ServerBusy" or (code == "OperationTimedOut" and not writing))):
        return Throttled(f"{answer}: over the limits of the account or the partition; send fewer requests")
    if isinstance(error, RequestTooLargeError):
        return PermanentError(
            f"{where} refused a batch as too large that is within Azure's limits: is it Azure Storage?"
        )
    if status >= 500 or status == 408 or 200 <= status < 300:  # 2xx: an answer that could not be read to its end
        return _lost(answer, writing)
    if code.endswith("BeingDeleted"):
        return Unavailable(f"{answer}: the store was deleted, and its name is free again in a minute")
    return PermanentError(f"{answer}; this request should not have been refused, or {where} is no Azure Storage")


def _skew(error: HttpResponseError) -> str:
    """Describe how far this machine's clock is off, because Azure then refuses signatures. Empty if it is right."""
    try:
        date = parsedate_to_datetime(error.response.headers["Date"]).timestamp()  # type: ignore[union-attr]
    except (AttributeError, KeyError, TypeError, ValueError):
        return ""
    off = time.time() - date
    if abs(off) < _SKEW:
        return ""
    return f"; this machine's clock is {abs(off):.0f} s {'ahead of' if off > 0 else 'behind'} the service's: set it"


def _causes(error: BaseException, handled: BaseException | None) -> Iterator[BaseException]:
    """The error and all that it wraps, in whichever of the ways that the SDK, requests and urllib3 wrap; but not
    `handled`."""
    seen = {id(handled)}
    todo: list[object] = [error]
    while todo:
        found = todo.pop()
        if isinstance(found, BaseException) and id(found) not in seen:
            seen.add(id(found))
            yield found
            todo += [getattr(found, "inner_exception", None), getattr(found, "reason", None), found.__cause__]
            todo += [found.__context__, *found.args[:1]]
