"""A store whose records and entries are objects of a registry's classes."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, Generic, Literal, TypeVar, Unpack, overload

from ..arguments import check_type
from ..gaps import Gap
from ..leases import Lease, LeaseGrant
from ..lexkey import LexKey
from ..model import TRX, SegmentStatus
from ..transaction import Transaction
from .registry import Policy, Registry, Typed, check_policy

if TYPE_CHECKING:
    from ..groups import GroupOptions, QueueOptions
    from ..routes.route import Route
    from ..store import Store
    from ..views.open_view import OpenView
    from .groups import TypedGroup, TypedQueue
    from .view import TypedView

__all__ = ["TypedStore", "TypedTransaction"]

W = TypeVar("W")
R = TypeVar("R")
AnyOffset = LexKey | bytes | str
Quiet = Literal["raise", "skip"]


class TypedTransaction(Generic[W]):
    """A transaction over several segments, which is committed at the end of its `with` block."""

    def __init__(self, transaction: Transaction, registry: Registry[W]) -> None:
        self.transaction = transaction
        self._registry = registry

    def produce(
        self,
        segment: str,
        values: Iterable[W],
        *,
        metadata: Mapping[str, str] | None = None,
        expected_sequence: int | None = None,
    ) -> None:
        """Add objects, with `metadata` on each. See `Transaction.produce`."""
        records = self._registry.records(values, metadata)
        self.transaction.produce(segment, records, expected_sequence=expected_sequence)

    @property
    def statuses(self) -> dict[str, SegmentStatus]:
        """Return each segment's status after the commit; empty before it."""
        return self.transaction.statuses

    @property
    def trx(self) -> TRX | None:
        """Return the transaction's id after the commit; None before it."""
        return self.transaction.trx

    def __enter__(self) -> TypedTransaction[W]:
        self.transaction.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.transaction.__exit__(kind, error, trace)


class TypedStore(Generic[W, R]):
    """A store of objects, from `store.typed(registry)`. It writes objects, and reads them beside their entries. Safe to
    share.

    `unknown`: the treatment of an entry whose type, or later version, the registry lacks. A reader raises UnknownType
    or UnsupportedVersion ("raise"), skips the entry ("skip"), or gets an `Unknown` as the value ("raw").
    """

    def __init__(self, store: Store, registry: Registry[W], unknown: Policy = "raise") -> None:
        check_type(registry, Registry, "a typed store takes a streamkit.types.Registry")
        self.store = store
        self.registry = registry
        self.unknown = check_policy(unknown)

    # -- writing ------------------------------------------------------------------------------------------------

    def produce(
        self,
        space: str,
        segment: str,
        values: Iterable[W],
        *,
        metadata: Mapping[str, str] | None = None,
        expected_sequence: int | None = None,
        idempotency_key: str | None = None,
        lease: Lease | LeaseGrant | None = None,
    ) -> SegmentStatus:
        """Append objects in one transaction, with `metadata` on each. See `Store.produce`.

        TypeError for an object that is not of a registered class, or that would not be read as it is.
        """
        return self.store.produce(
            space,
            segment,
            self.registry.records(values, metadata),
            expected_sequence=expected_sequence,
            idempotency_key=idempotency_key,
            lease=lease,
        )

    def transaction(
        self, space: str, idempotency_key: str | None = None, lease: Lease | LeaseGrant | None = None
    ) -> TypedTransaction[W]:
        """A transaction over several segments: `with typed.transaction(space) as trx: trx.produce(…)`."""
        return TypedTransaction(self.store.transaction(space, idempotency_key, lease), self.registry)

    # -- reading ------------------------------------------------------------------------------------------------

    def peek(self, space: str, segment: str) -> Typed[R] | None:
        """The latest entry of a segment; None if there is none, or if its type is unknown and skipped."""
        entry = self.store.peek(space, segment)
        return self.registry.read_or(entry, self.unknown) if entry.sequence else None

    @overload
    def consume_segment(
        self, space: str, segment: str, *, gaps: Quiet = "raise", **bounds: Any
    ) -> Iterator[Typed[R]]: ...
    @overload
    def consume_segment(
        self, space: str, segment: str, *, gaps: Literal["yield"], **bounds: Any
    ) -> Iterator[Typed[R] | Gap]: ...
    def consume_segment(self, space: str, segment: str, **bounds: Any) -> Iterator[Any]:
        """The objects of a segment, in sequence order. Bounds: see `Store.consume_segment`."""
        return self.registry.reading(self.store.consume_segment(space, segment, **bounds), self.unknown)

    @overload
    def consume_space(
        self, space: str, *, offset: AnyOffset | None = None, gaps: Quiet = "raise", **bounds: Any
    ) -> Iterator[Typed[R]]: ...
    @overload
    def consume_space(
        self, space: str, *, offset: AnyOffset | None = None, gaps: Literal["yield"], **bounds: Any
    ) -> Iterator[Typed[R] | Gap]: ...
    def consume_space(self, space: str, *, offset: AnyOffset | None = None, **bounds: Any) -> Iterator[Any]:
        """The objects of a space, in commit order. Bounds: see `Store.consume_space`."""
        return self.registry.reading(self.store.consume_space(space, offset=offset, **bounds), self.unknown)

    @overload
    def consume(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Quiet = "raise", **bounds: Any
    ) -> Iterator[Typed[R]]: ...
    @overload
    def consume(
        self, offsets: Mapping[str, AnyOffset | None], *, gaps: Literal["yield"], **bounds: Any
    ) -> Iterator[Typed[R] | Gap]: ...
    def consume(self, offsets: Mapping[str, AnyOffset | None], **bounds: Any) -> Iterator[Any]:
        """The objects of several spaces, merged by timestamp. Bounds: see `Store.consume`."""
        return self.registry.reading(self.store.consume(offsets, **bounds), self.unknown)

    @overload
    def follow_segment(
        self, space: str, segment: str, *, after: int = 0, timeout: float | None = None, gaps: Quiet = "raise"
    ) -> Iterator[Typed[R]]: ...
    @overload
    def follow_segment(
        self, space: str, segment: str, *, after: int = 0, timeout: float | None = None, gaps: Literal["yield"]
    ) -> Iterator[Typed[R] | Gap]: ...
    def follow_segment(self, space: str, segment: str, **options: Any) -> Iterator[Any]:
        """The objects of a segment, then those that come. See `Store.follow_segment`."""
        return self.registry.reading(self.store.follow_segment(space, segment, **options), self.unknown)

    @overload
    def follow_space(
        self, space: str, *, offset: AnyOffset | None = None, timeout: float | None = None, gaps: Quiet = "raise"
    ) -> Iterator[Typed[R]]: ...
    @overload
    def follow_space(
        self, space: str, *, offset: AnyOffset | None = None, timeout: float | None = None, gaps: Literal["yield"]
    ) -> Iterator[Typed[R] | Gap]: ...
    def follow_space(self, space: str, **options: Any) -> Iterator[Any]:
        """The objects of a space, then those that come. See `Store.follow_space`."""
        return self.registry.reading(self.store.follow_space(space, **options), self.unknown)

    @overload
    def follow(
        self, offsets: Mapping[str, AnyOffset | None], *, timeout: float | None = None, gaps: Quiet = "raise"
    ) -> Iterator[Typed[R]]: ...
    @overload
    def follow(
        self, offsets: Mapping[str, AnyOffset | None], *, timeout: float | None = None, gaps: Literal["yield"]
    ) -> Iterator[Typed[R] | Gap]: ...
    def follow(self, offsets: Mapping[str, AnyOffset | None], **options: Any) -> Iterator[Any]:
        """The objects of several spaces, then those that come. See `Store.follow`."""
        return self.registry.reading(self.store.follow(offsets, **options), self.unknown)

    # -- clients of the store -----------------------------------------------------------------------------------

    def group(
        self,
        space: str,
        name: str,
        *,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
        **settings: Unpack[GroupOptions],
    ) -> TypedGroup[R]:
        """A group whose deliveries have objects. See `Store.group`."""
        from .groups import TypedGroup

        return TypedGroup(self.store.group(space, name, start=start, **settings), self.registry, self.unknown)

    def queue(self, name: str, **settings: Unpack[QueueOptions]) -> TypedQueue[W, R]:
        """A queue of objects. See `Store.queue`."""
        from .groups import TypedQueue

        return TypedQueue(self.store.queue(name, **settings), self.registry, self.unknown)

    def view(
        self,
        name: str,
        view: TypedView[R],
        spaces: Iterable[str],
        path: str | os.PathLike[str] | None = None,
        publish: bool = False,
        **options: Any,
    ) -> OpenView:
        """A view whose `apply` gets objects. See `Store.view`."""
        from .view import applied

        return self.store.view(name, applied(view, self.registry, self.unknown), spaces, path, publish, **options)

    def route(
        self,
        name: str,
        source: str,
        target: str,
        where: Callable[[Typed[R]], bool] | None = None,
        segment: Callable[[Typed[R]], str] | str | None = None,
        transform: Callable[[Typed[R]], W | None] | None = None,
        target_store: Store | None = None,
        start: AnyOffset | Literal["beginning", "end"] = "beginning",
    ) -> Route:
        """A route whose functions get objects; `transform` gives the object to write. See `Store.route`.

        The copy keeps the entry's metadata, apart from its type and version.
        """
        from .route import routed

        functions = routed(self.registry, self.unknown, where, segment, transform)
        return self.store.route(name, source, target, *functions, target_store, start)

    def __repr__(self) -> str:
        return f"<TypedStore {self.store.id} of {self.registry!r}>"
