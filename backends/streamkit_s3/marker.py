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

__all__ = ["Content", "Marker"]

_FORMAT = 2
_NEVER = '"00000000000000000000000000000000"'
"""An etag that no object has."""


class Content(msgspec.Struct, frozen=True):
    streamkit: int
    """The version of the store's format."""
    conditional_deletes: bool
    """Whether the service was seen to honour If-Match on DELETE, as not all do."""

    @property
    def split(self) -> bool:
        """Whether long names are split; see `layout`."""
        return self.streamkit >= 2


class _Known:
    """What this process knows of one marker."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.founding = Mutex()
        self.look: Task[None] | None = None
        self.looked = False
        self.content: Content | None = None


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
        """The store was deleted."""
        self._bucket.connection.process.marks.pop(self._path, None)

    @contextmanager
    def beside(self) -> Iterator[None]:
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
            # The block could read; whatever else is wrong with the marker is for the first write to say.
            if isinstance(error, UnsupportedVersion | CorruptData):
                raise

    def splits(self) -> bool:
        """Whether long names are split in this store; a store that is not there yet will be so."""
        known = self._known
        if not known.looked:
            self._look()
        return known.content is None or known.content.split

    def ensure(self) -> Content:
        """Before a write: the marker, made if there is none."""
        known = self._known
        if known.content is None:
            with known.founding():
                if not known.looked:
                    self._look()
                if known.content is None:
                    try:
                        known.content = self._found()
                    except Ambiguous as error:
                        raise Unavailable(f"the store could not be created: {error}") from None
        assert known.content is not None
        return known.content

    def _look(self) -> None:
        known = self._known
        found = self._bucket.get(self._name)
        if found is not None:
            known.content = self._decode(found.data)
        known.looked = True

    def _decode(self, data: bytes) -> Content:
        where = f"s3://{self._bucket.connection.target.bucket}/{self._name}"
        try:
            version = msgspec.json.decode(data)["streamkit"]
            if version > _FORMAT:
                raise UnsupportedVersion(
                    f"{where}: the store has format {version}, this release reads up to {_FORMAT}; upgrade streamkit"
                )
            return msgspec.json.decode(data, type=Content)
        except (msgspec.MsgspecError, UnicodeDecodeError, KeyError, TypeError, IndexError):
            raise CorruptData(
                f"{where} is no marker of a streamkit store; if something else uses this prefix, choose another"
            ) from None

    def _found(self) -> Content:
        """Probe the service if this process has not, then make the marker: it stands for a probe that passed."""
        process = self._bucket.connection.process
        if process.conditional_deletes is None:
            process.conditional_deletes = self._probe()
        content = Content(_FORMAT, process.conditional_deletes)
        try:
            self._bucket.put(self._name, msgspec.json.encode(content), absent=True)
        except Conflict:
            self._look()
            known = self._known.content
            if known is None:
                raise Unavailable("the store is being deleted by someone else; try again") from None
            return known
        return content

    def _probe(self) -> bool:
        """PermanentError if conditional PUTs are not honoured; else whether conditional DELETEs are."""
        bucket = self._bucket
        for_puts, for_delete = (f"{self._path}probe/{uuid4().hex}" for _ in range(2))
        together = bucket.connection.together
        try:
            together([partial(bucket.put, for_puts, b"probe"), partial(bucket.put, for_delete, b"probe")])
            created, replaced, deleted = together(
                [
                    partial(_refused, partial(bucket.put, for_puts, b"probe", absent=True)),
                    partial(_refused, partial(bucket.put, for_puts, b"probe", etag=_NEVER)),
                    partial(_refused, partial(bucket.delete, for_delete, etag=_NEVER)),
                ]
            )
        finally:
            with suppress(StreamkitError):
                bucket.delete_all([for_puts, for_delete])
        if not (created and replaced):
            raise PermanentError(
                f"s3://{bucket.connection.target.bucket} ({bucket.connection.target}) does not honour "
                f"{'If-Match' if created else 'If-None-Match'} on PUT, without which writers would overwrite each "
                "other; nothing was written: use a service, or a version of it, with conditional writes"
            )
        return deleted


def _refused(write: Callable[[], object]) -> bool:
    """Whether a write that has to be refused is."""
    try:
        write()
    except Conflict:
        return True
    except AccessDenied:
        raise
    except PermanentError:
        # The service does not even know the header.
        return False
    return False
