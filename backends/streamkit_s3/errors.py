"""Translate errors of S3 and its SDK to those of the seam. Foreign texts are dropped, because they may hold keys or
tokens."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from streamkit.backend import Ambiguous, Conflict
from streamkit.errors import AccessDenied, PermanentError, StreamkitError, Throttled, Unavailable

__all__ = [
    "Beyond",
    "Cut",
    "Missing",
    "Refused",
    "Request",
    "Target",
    "Unreached",
    "Untrusted",
    "credentials_failed",
    "is_elsewhere",
    "lost",
    "refused",
    "translate",
]

_CREDENTIALS = {
    "AuthFailure",
    "ExpiredToken",
    "ExpiredTokenException",
    "InvalidAccessKeyId",
    "InvalidSecurity",
    "InvalidToken",
    "RequestExpired",
    "SignatureDoesNotMatch",
    "TokenRefreshRequired",
    "UnrecognizedClientException",
}
_REGION = {
    "AuthorizationHeaderMalformed",
    "IllegalLocationConstraintException",
    "PermanentRedirect",
    "TemporaryRedirect",
}
# S3 did not take the request: the body came in parts, damaged or not at all.
_NOT_TAKEN = {"BadDigest", "IncompleteBody", "RequestTimeout", "XAmzContentSHA256Mismatch"}
_THROTTLED = re.compile(r"SlowDown|Throttl|TooManyRequests|RequestLimitExceeded|BandwidthLimitExceeded")
_CODE = re.compile(r"[A-Z][A-Za-z.]{2,63}")
_ACTION = re.compile(r"\bs3:[A-Za-z]{1,40}\b")
_FIX_CREDENTIALS = "check the AWS credentials (environment, profile, or the role of this function or machine)"


class Missing(StreamkitError):
    """The object does not exist. The error stays inside this package."""


class Beyond(StreamkitError):
    """The range starts after the object's end. Stays inside this package."""


class Cut(Exception):
    """The lean client has no answer, or not all of it."""


class Unreached(Exception):
    """The lean client has no connection, so that nothing was sent."""


class Untrusted(Exception):
    """The lean client does not trust the server, or the server does not speak TLS. Nothing was sent."""


class Refused(Exception):
    """The service refused a request of the lean client. Its text may hold keys or tokens, so no message quotes it."""

    def __init__(self, status: int, answer: Mapping[str, str], headers: Mapping[str, str]) -> None:
        super().__init__(status)
        self.status = status
        self.answer = answer
        self.headers = headers


class Target(NamedTuple):
    bucket: str
    region: str | None
    endpoint: str | None

    def __str__(self) -> str:
        given = next(
            (f"of {name}" for name in ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL") if os.environ.get(name)), None
        )
        return f"endpoint {self.endpoint or given or 'by default'}, region {self.region or 'by default'}"


class Request(NamedTuple):
    """A request, for messages and for the meaning of a lost answer."""

    verb: str
    name: str
    write: bool = False
    conditional: bool = False
    key: bytes | None = None

    def at(self, target: Target) -> str:
        return f"{self.verb} s3://{target.bucket}/{self.name}"


def translate(error: Exception, request: Request, target: Target) -> Exception:
    """The error to raise instead of `error`; itself if it is streamkit's, or a bug."""
    if isinstance(error, StreamkitError):
        return error
    match error:
        case Refused():
            return refused(request, target, error.status, error.answer, error.headers)
        case Cut():
            return lost(request, target, str(error))
        case Unreached():
            return _unreached(request, target)
        case Untrusted():
            return _untrusted(request, target)
    from http.client import HTTPException

    from botocore import exceptions as sdk
    from botocore.parsers import ResponseParserError
    from urllib3.exceptions import HTTPError

    what = request.at(target)
    match error:
        case sdk.ClientError():
            metadata = error.response.get("ResponseMetadata", {})
            answer: Mapping[str, Any] = error.response.get("Error", {})
            status = int(metadata.get("HTTPStatusCode", 0))
            return refused(request, target, status, answer, metadata.get("HTTPHeaders", {}))
        case sdk.ProxyConnectionError() if not _has_no_proxy(error):
            return lost(request, target, type(error).__name__)
        case sdk.EndpointConnectionError() | sdk.ConnectTimeoutError() | sdk.ProxyConnectionError():
            return _unreached(request, target)
        case sdk.SSLError() if "CERTIFICATE_VERIFY_FAILED" in str(error) or "WRONG_VERSION" in str(error):
            return _untrusted(request, target)
        case _ if _is_credentials(error):
            return AccessDenied(f"{what}: no usable credentials ({type(error).__name__}); {_FIX_CREDENTIALS}")
        case (
            sdk.HTTPClientError()
            | sdk.ConnectionError()
            | sdk.IncompleteReadError()
            | ResponseParserError()
            | HTTPError()
            | HTTPException()
            | OSError()
            # The SDK reads the rest of a truncated header.
            | ValueError()
            | LookupError()
        ):
            return lost(request, target, type(error).__name__)
        case _ if type(error).__module__.startswith("boto"):
            return PermanentError(
                f"{what}: refused by the SDK before it was sent ({type(error).__name__}); check the AWS "
                f"configuration of this process ({target})"
            )
    return error


def refused(
    request: Request, target: Target, status: int, answer: Mapping[str, Any], headers: Mapping[str, str]
) -> StreamkitError:
    """The error for an answer that is one: `status` (0: unknown) and the `Code` and `Message` in `answer`."""
    what = request.at(target)
    code = str(answer.get("Code", ""))
    if not _CODE.fullmatch(code):
        code = ""
    said = f"{status or ''} {code}".strip()
    if code == "NoSuchKey":
        return Conflict(request.key) if request.conditional else Missing(what)
    if code == "NoSuchBucket":
        return PermanentError(
            f"{what}: the bucket {target.bucket!r} does not exist ({target}); create it, or correct the URL"
        )
    if status == 412 or code == "PreconditionFailed":
        return Conflict(request.key)
    if status == 409 and request.conditional:
        # The other request is under way, and may be another copy of this one.
        return lost(request, target, said)
    if status == 409:
        return Unavailable(f"{what}: another operation on it is under way ({said}); try again")
    if status == 416:
        return Beyond(what)
    if status == 429 or _THROTTLED.search(code):
        return Throttled(f"{what}: the service asks to slow down ({said})")
    if code in _NOT_TAKEN:
        return Unavailable(f"{what}: the request did not arrive whole ({said}); try again")
    if code == "RequestTimeTooSkewed":
        return PermanentError(f"{what}: {_clock(headers)} ({said}); set this machine's clock (NTP), then go on")
    if status in (301, 302, 307, 308) or code in _REGION:
        found = headers.get("x-amz-bucket-region") or answer.get("Region")
        right = f"it is in region {found}" if found and re.fullmatch(r"[a-z0-9-]{1,40}", found) else "elsewhere"
        return PermanentError(
            f"{what}: wrong region or endpoint ({said}): asked {target}, {right}; correct region= or "
            "endpoint_url= in the URL"
        )
    if code == "InvalidObjectState":
        return PermanentError(
            f"{what}: the object was moved to an archive storage class; restore it, and except this prefix from "
            "the bucket's lifecycle rules"
        )
    if code in _CREDENTIALS or status == 401:
        return AccessDenied(f"{what}: the credentials are refused ({said}); {_FIX_CREDENTIALS}")
    if status == 403 or code == "AccessDenied":
        action = _ACTION.search(str(answer.get("Message", "")))
        need = action[0] if action else "s3:GetObject, s3:PutObject, s3:DeleteObject and s3:ListBucket"
        return AccessDenied(
            f"{what}: access denied ({said}); these credentials need {need} here (without s3:ListBucket, S3 "
            "answers so for an object that does not exist)"
        )
    if status == 501 or code == "NotImplemented":
        return PermanentError(f"{what}: this service does not do that ({said}); {target}")
    if status >= 500 or code in ("InternalError", "ServiceUnavailable"):
        return lost(request, target, said)
    if status == 404:
        return PermanentError(f"{what}: this does not look like S3 ({said}); check endpoint_url ({target})")
    return PermanentError(f"{what}: refused ({said}); {target}")


def credentials_failed(error: Exception) -> bool:
    """True if other credentials, which may be there by now, could do better."""
    if isinstance(error, Refused):
        return error.answer.get("Code") in _CREDENTIALS
    if isinstance(error, Cut | Unreached | Untrusted):
        return False
    from botocore.exceptions import ClientError

    if isinstance(error, ClientError):
        return error.response.get("Error", {}).get("Code") in _CREDENTIALS
    return _is_credentials(error)


def is_elsewhere(error: Refused) -> bool:
    """True if the bucket is in another region than the one that was asked."""
    return error.status in (301, 302, 307, 308) or error.answer.get("Code") in _REGION


def _is_credentials(error: Exception) -> bool:
    from botocore import exceptions as sdk

    return isinstance(
        error,
        sdk.NoCredentialsError
        | sdk.PartialCredentialsError
        | sdk.CredentialRetrievalError
        | sdk.MetadataRetrievalError
        | sdk.TokenRetrievalError
        | sdk.SSOError,
    )


def _has_no_proxy(error: Exception) -> bool:
    """True if there was no connection to the proxy, or none through it, so that nothing was sent. A connection that
    breaks later has the same error: urllib3 no longer knows by then that it existed.
    """
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    cause = getattr(getattr(error, "kwargs", {}).get("error"), "original_error", None)
    return isinstance(cause, NewConnectionError | ConnectTimeoutError) or str(cause).startswith("Tunnel connection")


def _unreached(request: Request, target: Target) -> Unavailable:
    return Unavailable(
        f"{request.at(target)}: no connection ({target}); check endpoint_url and region in the URL, and the network"
    )


def _untrusted(request: Request, target: Target) -> PermanentError:
    return PermanentError(
        f"{request.at(target)}: TLS failed ({target}); check that endpoint_url is right (http or https?) and that its "
        "certificate is trusted here (AWS_CA_BUNDLE)"
    )


def lost(request: Request, target: Target, why: str) -> StreamkitError:
    """The error for a request without a whole answer."""
    if request.write:
        return Ambiguous(f"{request.at(target)}: the answer was lost ({why})")
    return Unavailable(f"{request.at(target)}: no whole answer ({why})")


def _clock(headers: Mapping[str, str]) -> str:
    from email.utils import parsedate_to_datetime

    try:
        off = time.time() - parsedate_to_datetime(headers["date"]).timestamp()
    except (KeyError, ValueError):
        return "this machine's clock is too far off the service's"
    return f"this machine's clock is about {abs(off) / 60:.0f} minutes {'ahead' if off > 0 else 'behind'}"
