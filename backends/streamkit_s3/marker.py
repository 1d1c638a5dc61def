"""The object that says: here is a store, in a format this release knows, on a service that keeps to conditions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from uuid import uuid4

import msgspec

from streamkit.backend import Ambiguous, Conflict
from streamkit.errors import (
    AccessDenied,
    CorruptData,
    PermanentError,
    StreamkitError,
    Unavailable,
    UnsupportedVersion,
)
from streamkit.reentry import Mutex

from .bucket import Bucket
from .connection import Task

__all__ = ["Marker"]

_FORMAT = 3
_NEVER = '"00000000000000000000000000000000"'
"""An etag that no object has."""


class _Known:
    """The state of one marker as this process knows it."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.founding = Mutex()
        self.look: Task[None] | None = None
        self.looked = False
        self.there = False


class Marker:
    """The marker of the store at `path`. It is looked at once by a process, beside the store's first read."""

    def __init__(self, bucket: Bucket, path: str) -> None:
        self._bucket = bucket
        self._path = path
        self._name = f"{path}FORMAT"

    @property
    def _known(self) -> _Known:
        marks = self._bucket.connection.process.marks
        known: _Known = marks.get(self._path) or marks.setdefault(self._path, _Known())
        return known

    def forget(self) -> None:
        """Note that the store was deleted."""
        self._bucket.connection.process.marks.pop(self._path, None)

    @contextmanager
    def while_reading(self) -> Iterator[None]:
        """Look at the marker at the same time as the block reads. UnsupportedVersion at its end."""
        known = self._known
        if known.looked:
            yield
            return
        with known.lock():
            look = known.look = known.look or self._bucket.connection.task(self._look)
        yield
        try:
            look.result()
        except StreamkitError as error:
            known.look = None
            # The block could read. The first write reports other faults of the marker.
            if isinstance(error, UnsupportedVersion | CorruptData):
                raise

    def check(self) -> None:
        """Check the format before a delete: UnsupportedVersion if it is another one. A missing marker is fine."""
        if not self._known.looked:
            self._look()

    def ensure(self) -> None:
        """Make sure, before a put, that the marker exists."""
        known = self._known
        if known.there:
            return
        with known.founding():
            self.check()
            if not known.there:
                try:
                    self._found()
                except Ambiguous as error:
                    raise Unavailable(f"the store could not be created: {error}") from None

    def _look(self) -> None:
        known = self._known
        marker = self._bucket.get(self._name)
        if marker is not None:
            self._check_version(marker.data)
            known.there = True
        known.looked = True

    def _check_version(self, data: bytes) -> None:
        where = f"s3://{self._bucket.connection.target.bucket}/{self._name}"
        try:
            version = int(msgspec.json.decode(data)["streamkit"])
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, ValueError, IndexError):
            raise CorruptData(
                f"{where} is no marker of a streamkit store; if something else uses this prefix, choose another"
            ) from None
        if version != _FORMAT:
            what = "upgrade streamkit" if version > _FORMAT else "read it with the release that wrote it"
            raise UnsupportedVersion(f"{where}: the store has format {version}, this release reads {_FORMAT}; {what}")

    def _found(self) -> None:
        """Probe the service if this process has not, then make the marker: it stands for a probe that passed."""
        process = self._bucket.connection.process
        if not process.probed:
            self._probe()
            process.probed = True
        try:
            self._bucket.put(self._name, msgspec.json.encode({"streamkit": _FORMAT}), absent=True)
        except Conflict:
            self._look()
            if not self._known.there:
                raise Unavailable("the store is being deleted by another process; try again") from None
        self._known.there = True

    def _probe(self) -> None:
        """Raise PermanentError if the service does not honour conditions on PUT."""
        bucket = self._bucket
        name = f"{self._path}probe/{uuid4().hex}"
        try:
            bucket.put(name, b"probe")
            created, replaced = bucket.connection.together(
                [
                    partial(_is_refused, partial(bucket.put, name, b"probe", absent=True)),
                    partial(_is_refused, partial(bucket.put, name, b"probe", etag=_NEVER)),
                ]
            )
        finally:
            with suppress(StreamkitError):
                bucket.delete_all([name])
        if not (created and replaced):
            raise PermanentError(
                f"s3://{bucket.connection.target.bucket} ({bucket.connection.target}) does not honour "
                f"{'If-Match' if created else 'If-None-Match'} on PUT, without which writers would overwrite each "
                "other; nothing was written: use a service, or a version of it, with conditional writes"
            )


def _is_refused(put: Callable[[], object]) -> bool:
    """Try a write that the service must refuse. True if it does."""
    try:
        put()
    except Conflict:
        return True
    except AccessDenied:
        raise
    except PermanentError:
        # The service does not even know the header.
        return False
    return False
