"""Translates errors of delta-rs, object_store and pyarrow into streamkit's own, each with one plain line."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from urllib.parse import unquote

from msgspec import MsgspecError

from ..errors import AccessDenied, CorruptData, PermanentError, StreamkitError, Throttled, Unavailable
from ..log.archive_reader import ArchiveUnreadable

__all__ = ["UNDECODABLE", "Damaged", "Elsewhere", "foreign", "mapped", "says_no_bucket"]

_ESCAPE = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b.")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]+")
_FRAMES = re.compile(r"\s+0: (<unknown>|\w+::).*", re.DOTALL)
"""The beginning of a Rust backtrace."""
_STATUS = re.compile(r"status code\W+(\d{3} [A-Z][A-Za-z ]*)")
_CODE = re.compile(r"<Code>([A-Za-z0-9.]+)</Code>")
_MESSAGE = re.compile(r"<Message>(.*?)(?:RequestId:|</Message>)", re.DOTALL)
_SIGNED = re.compile(r"((?:sig|signature|token|credential|x-amz-[a-z-]+|awsaccesskeyid)=)[^&\s]+", re.IGNORECASE)
_SECRET = re.compile("secret|key|token|sas|password|credential", re.IGNORECASE)
_LONGEST = 300

_DENIED = (
    "lacked the necessary privileges",
    "lacked valid authentication",
    "AccessDenied",
    "AuthorizationFailure",
    "AuthorizationPermissionMismatch",
    "AuthenticationFailed",
    "ExpiredToken",
    "InvalidAccessKeyId",
    "InvalidToken",
    "PermissionDenied",
    "Permission denied",
    "SignatureDoesNotMatch",
)
_KEPT = "operation is not permitted"
"""Azure's text if a blob has snapshots, or is immutable by a policy: then it deletes none."""
_NO_BUCKET = ("NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted")
_SERVICE = (
    "Error performing",
    "Generic S3 error",
    "Generic MicrosoftAzure error",
    "Generic GCS error",
    "HTTP error",
    "connect",
    "sending request",
    "timed out",
)
"""Texts of errors that come from the storage service and not from the table's files."""


class Damaged(ArchiveUnreadable, CorruptData):
    """A part of the table is missing or cannot be read. The rest is unchanged."""


class Elsewhere(ArchiveUnreadable, PermanentError):
    """The configured location holds none of the store's archives."""


UNDECODABLE = (ArithmeticError, ValueError, MsgspecError)
"""Errors of decoding a damaged file. A TypeError, an AttributeError or a LookupError is a fault of this code and leaves
it as it is: foreign values are checked before they are used."""


@contextlib.contextmanager
def mapped(url: str, options: Mapping[str, str]) -> Iterator[None]:
    """Translate foreign errors about `url` into ours, without the secrets in `options`, the storage's options."""
    try:
        yield
    except StreamkitError:
        raise
    except Exception as error:
        if not _is_foreign(error):
            raise
        raise foreign(error, url, options) from error
    except BaseException as error:
        if type(error).__name__ != "PanicException":  # of delta-rs, which calls it no Exception
            raise
        if "Forked process" in str(error):
            raise PermanentError(
                f"{url}: this process was forked from one that had used a table, and delta-rs works in that one alone: "
                'start processes with "spawn", as in multiprocessing.get_context("spawn")'
            ) from error
        raise Damaged(f"{url}: the table cannot be read: {_plain(error, options)}") from error


def _is_foreign(error: Exception) -> bool:
    import pyarrow as pa
    from deltalake.exceptions import DeltaError

    # delta-rs and pyarrow also say of a damaged file that it has a wrong value.
    return isinstance(error, (DeltaError, OSError, pa.ArrowException, *UNDECODABLE))


def says_no_bucket(error: Exception) -> bool:
    """True if the bucket or container does not exist."""
    return any(code in str(error) for code in _NO_BUCKET)


def foreign(error: Exception, url: str, options: Mapping[str, str]) -> StreamkitError:
    """The error that says the same."""
    from deltalake.exceptions import CommitFailedError

    whole = str(error)
    said = _said(error, options)
    status = int(found[1][:3]) if (found := _STATUS.search(_ESCAPE.sub("", whole))) else 0
    if says_no_bucket(error):
        return PermanentError(f"{url}: its bucket or container does not exist ({said}): create it, or correct the URL")
    if isinstance(error, PermissionError) or status in (401, 403) or any(word in whole for word in _DENIED):
        return AccessDenied(f"{url}: the storage refused the access ({said}): check the credentials and permissions")
    if _KEPT in whole:
        return AccessDenied(
            f"{url}: the storage keeps a file that is to be deleted ({said}): delete the snapshots of the blobs there, "
            "or end the policy that keeps them, and try again"
        )
    if isinstance(error, FileNotFoundError) or status == 404:
        return Damaged(f"{url}: a file is missing: {said}")
    if status in (429, 503):
        return Throttled(f"{url}: the storage asks to slow down ({said})")
    if 400 <= status < 500 and status not in (408, 409, 412):
        return PermanentError(f"{url}: the storage refused the request ({said})")
    if status or any(word in whole for word in _SERVICE) or isinstance(error, CommitFailedError):
        return Unavailable(f"{url}: {said}")
    if isinstance(error, OSError) and error.errno is not None:
        return Unavailable(f"{url}: {said}")
    return Damaged(f"{url}: it cannot be read: {said}")


def _said(error: Exception, options: Mapping[str, str]) -> str:
    """The storage's answer, if the error quotes one, or the text of the error."""
    text = _plain(error, options)
    status, code, message = (pattern.search(text) for pattern in (_STATUS, _CODE, _MESSAGE))
    if status is None:
        return text[:_LONGEST]
    parts = [status[1].strip(), code[1] if code else "", message[1].strip() if message else ""]
    return " ".join(filter(None, parts))[:_LONGEST]


def _plain(error: BaseException, options: Mapping[str, str]) -> str:
    """One line without control characters, backtraces and secrets."""
    text = _FRAMES.sub("", str(error))
    text = _CONTROL.sub(" ", _ESCAPE.sub("", text)).replace("↳", ":")
    text = _SIGNED.sub(r"\1…", " ".join(text.split())).replace(" : ", ": ")
    for name, value in options.items():
        if _SECRET.search(name):
            signatures = [part[4:] for part in re.split("[?&]", value) if part.startswith("sig=")]
            for secret in (value, *signatures, *map(unquote, signatures)):
                text = text.replace(secret, "…") if len(secret) > 3 else text
    return text
