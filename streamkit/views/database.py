"""One build of a view: a SQLite file whose data and position are written in one transaction."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import TracebackType
from typing import Any, Literal, NoReturn
from urllib.parse import quote

import msgspec

from ..decoders import json_decoder
from ..errors import CorruptData, PermanentError, StreamkitError, Unavailable, UnsupportedVersion
from ..run.reading import SpacePosition
from .files import sync
from .view import ViewFailure

__all__ = [
    "FOREIGN",
    "State",
    "ViewConnection",
    "open_reader",
    "open_writer",
    "read_state",
    "refused",
    "transaction",
    "write_clean",
    "write_state",
]

FORMAT = 1
_REMEDIES = {
    "SQLITE_FULL": "free some space, and call it again",
    "SQLITE_IOERR": "free some space or check the disk, and call it again",
    "SQLITE_CANTOPEN": "give this user access to it, or raise `ulimit -n` if many files are open",
    "SQLITE_BUSY": "call it again",
    "SQLITE_LOCKED": "call it again",
}
_DAMAGED = {"SQLITE_CORRUPT", "SQLITE_NOTADB"}
_FTS = re.compile(r"create\s+virtual\s+table\b.*\busing\s+fts[345]\b", re.IGNORECASE | re.DOTALL)
_TABLES = """
create table if not exists streamkit_view (id integer primary key check (id = 1), state text not null);
create table if not exists streamkit_skipped (
    space text not null, segment text not null, sequence integer not null, timestamp integer not null,
    offset text not null, error text not null
);
"""


class State(msgspec.Struct, frozen=True, omit_defaults=True):
    """The position and the status of a build; one row, written with every batch."""

    format: int
    store: str
    name: str
    version: int
    spaces: dict[str, SpacePosition]
    failure: ViewFailure | None = None
    skipped: int = 0
    complete: bool = True
    revision: int = 0
    """Grows with every transaction."""
    resumed: ViewFailure | None = None
    """Why it was paused, until it tries again: the entry is the next, and may still be passed over."""
    told: dict[str, tuple[int, ...]] = {}
    """The transaction of each partition up to which the build has handled erasures, by space."""
    clean: bool = False
    """True if the file holds no erased entries, not even in its free space."""

    @property
    def entries(self) -> int:
        return sum(position.entries for position in self.spaces.values())


class ViewConnection(sqlite3.Connection):
    """A connection whose transactions belong to the runner: a statement that would end one is refused."""

    guarded = False

    def _refuse(self, what: str) -> NoReturn:
        raise sqlite3.ProgrammingError(
            f"a view does not {what}: its data and its position are committed together, when apply has returned"
        )

    def commit(self) -> None:
        if self.guarded:
            self._refuse("commit")
        super().commit()

    def rollback(self) -> None:
        if self.guarded:
            self._refuse("roll back")
        super().rollback()

    def executescript(self, script: str, /) -> sqlite3.Cursor:
        """Several statements, in the present transaction: sqlite3's own commits first."""
        if not self.guarded:
            return super().executescript(script)
        cursor, statement = self.cursor(), ""
        for part in script.split(";"):
            statement += part + ";"
            if sqlite3.complete_statement(statement):
                if statement.strip(" \n\t\r;"):
                    cursor.execute(statement)
                statement = ""
        return cursor

    def __enter__(self) -> ViewConnection:
        if self.guarded:
            self._refuse("begin or end a transaction")
        super().__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> Literal[False]:
        return super().__exit__(kind, error, trace)


def _authorizer(db: ViewConnection) -> Callable[..., int]:
    def authorize(action: int, *_: Any) -> int:
        if action == sqlite3.SQLITE_TRANSACTION and db.guarded:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK

    return authorize


def open_writer(path: str) -> ViewConnection:
    """Open the connection that builds; makes a missing file. CorruptData if the file is no whole database."""
    with mapped(path):
        db = sqlite3.connect(
            path, isolation_level=None, check_same_thread=False, factory=ViewConnection, cached_statements=512
        )
        try:
            db.execute("pragma journal_mode = wal")
            db.execute("pragma synchronous = normal")  # a power cut may take the last batches, with their positions
            db.execute("pragma secure_delete = on")  # SQLite overwrites erased content
            db.execute("pragma cache_size = -32768")
            db.execute("pragma temp_store = memory")
            db.execute("pragma wal_autocheckpoint = 4000")
            db.executescript(_TABLES)
            db.set_authorizer(_authorizer(db))
        except BaseException:
            db.close()
            raise
    return db


def open_reader(path: str) -> sqlite3.Connection:
    """Read-only. FileNotFoundError if there is no such build any more."""
    try:
        db = sqlite3.connect(
            f"file:{quote(path)}?mode=ro",
            uri=True,
            isolation_level=None,
            cached_statements=512,
            check_same_thread=False,
        )
    except sqlite3.OperationalError as error:
        raise FileNotFoundError(path) from error
    db.execute("pragma query_only = on")
    db.execute("pragma mmap_size = 1073741824")
    return db


def read_state(db: sqlite3.Connection, path: str) -> State | None:
    """None of a database that is not set up."""
    with mapped(path):
        try:
            row = db.execute("select state from streamkit_view").fetchone()
        except sqlite3.OperationalError as error:
            if "no such table" in str(error):
                return None
            raise
    if row is None:
        return None
    try:
        state = json_decoder(State).decode(row[0])
    except msgspec.DecodeError as error:
        raise CorruptData(f"the view's database {path} does not say where it is: rebuild() the view") from error
    if state.format > FORMAT:
        raise UnsupportedVersion(
            f"the view's database {path} was made by a newer streamkit (format {state.format}, this one reads {FORMAT})"
        )
    return state


def write_state(db: sqlite3.Connection, state: State) -> None:
    text = msgspec.json.encode(state).decode()
    db.execute("insert or replace into streamkit_view values (1, ?)", (text,))


def write_clean(db: ViewConnection, path: str, to: str) -> None:
    """Write the database at `path` to a new file `to`: only the present contents of its tables.

    SQLite moves rows within pages and between them, and leaves copies where they were. `secure_delete` overwrites only
    the place that a row has when it is deleted. FTS5 keeps deleted words until it merges its index.
    """
    with transaction(db, path):
        for table, definition in db.execute("select name, sql from sqlite_master where type = 'table'").fetchall():
            if not _FTS.match(definition):
                continue
            name = table.replace('"', '""')
            db.execute(f'insert into "{name}" ("{name}") values (\'optimize\')')
        if db.execute("select 1 from sqlite_master where name = 'sqlite_stat4'").fetchone():
            db.execute("delete from sqlite_stat4")  # it has samples of the keys of indexes
    with mapped(path):
        db.execute("vacuum into ?", (to,))  # unlike VACUUM it keeps implicit row ids
    sync(to)


@contextmanager
def transaction(db: ViewConnection, path: str) -> Iterator[None]:
    """A block in one SQLite transaction. The block must not begin or end another one. Storage's own errors are
    Unavailable."""
    with mapped(path):
        try:
            db.execute("begin immediate")  # an interrupt that comes meanwhile is raised behind it
            db.guarded = True
            yield
            db.guarded = False
            db.commit()  # not as a statement: statements are cached, and would be allowed for the next caller
        except BaseException:
            db.guarded = False
            if db.in_transaction:
                db.rollback()
            raise


@contextmanager
def mapped(path: str) -> Iterator[None]:
    """Turn errors of the file system or of a damaged file into PermanentError, so that `apply` is not blamed for
    them."""
    try:
        yield
    except sqlite3.Error as error:
        found = _meaning(error, path)
        if found is None:
            raise
        raise found from error


def _meaning(error: sqlite3.Error, path: str) -> StreamkitError | None:
    kind = "_".join((getattr(error, "sqlite_errorname", None) or "").split("_")[:2])
    if kind in _REMEDIES:
        return Unavailable(f"the view's database {path} cannot be read or written ({error}): {_REMEDIES[kind]}")
    if kind in _DAMAGED:
        return CorruptData(f"the view's database {path} is damaged ({error}): rebuild() the view")
    return None


FOREIGN = (sqlite3.Error, sqlite3.Warning, OverflowError, UnicodeEncodeError)
"""Errors of sqlite3 for a statement or its parameters."""


def refused(error: Exception, path: str) -> StreamkitError | ValueError:
    """The error that a caller of a ready-made view gets for one of FOREIGN."""
    if isinstance(error, OverflowError):
        return ValueError("a number in the question does not fit into 64 bits: SQLite holds none that is larger")
    if isinstance(error, UnicodeEncodeError):
        return ValueError("text in the question has a lone surrogate: SQLite holds UTF-8")
    found = _meaning(error, path) if isinstance(error, sqlite3.Error) else None
    return found or PermanentError(f"SQLite refuses the question to the view at {path}: {error}")
