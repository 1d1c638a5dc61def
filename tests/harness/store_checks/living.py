"""The life of spaces and stores: creating, opening again, deleting, closing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID, uuid4

from streamkit.errors import SpaceExists, StoreClosed
from streamkit.model import Record
from streamkit.testing.backend_checks.subject import hold, same

from .naming import calls_with
from .subject import StoreSubject, numbered, refusing

__all__ = ["Living"]


class Living(StoreSubject):
    def test_a_store_exists_from_its_first_write(self) -> None:
        """A store was listed before anything was written, or not after; or its id was another."""
        same(self.store.id, self.store_id, "the id of the store")
        hold(isinstance(self.store.id, UUID), "a store's id is a UUID")
        list(self.store.get_spaces())
        self.store.peek("space", "s")
        hold(self.store_id not in set(self.connect().stores()), "a store that was only read is listed")
        self.put("space", "s", [b"1"])
        hold(self.store_id in set(self.connect().stores()), "a store that was written to is not listed")
        by_text = self.connect().store(str(self.store_id))
        same(self.payloads("space", "s", by_text), [b"1"], "the store by the text of its id")

    def test_stores_are_apart(self) -> None:
        """A store read what another one wrote, under the same names."""
        other_id = uuid4()
        other = self.client.store(other_id)
        try:
            self.put("space", "s", [b"mine"])
            same(list(other.get_spaces()), [], "the spaces of a store that nobody wrote to")
            self.put("space", "s", [b"other"], other)
            same(self.payloads("space", "s"), [b"mine"], "the first store")
            same(self.payloads("space", "s", other), [b"other"], "the other store")
        finally:
            self.client.delete_store(other_id)

    def test_everything_is_there_after_opening_again(self) -> None:
        """An acknowledged write was not there after closing and opening, or could not be continued."""
        for space in self.spaces():
            for first in (1, 11, 21):
                self.store.produce(space, "s", [Record(payload) for payload in numbered(first, first + 9)])
                before = self.agree(space)
                self.client.close()
                del self.client, self.store
                same(self.agree(space), before, "the entries after opening again")
            same(self.payloads(space, "s"), numbered(1, 30), "the segment after all")

    def test_a_space_is_created_once(self) -> None:
        """Creating a space again with the same settings failed, or with others did not."""
        self.store.create_space("space", partitions=4)
        for store in (self.store, self.stranger()):
            store.create_space("space", partitions=4)
            for partitions in (1, 3, 5):
                with refusing(SpaceExists, f"create_space with {partitions} partitions where it has 4"):
                    store.create_space("space", partitions=partitions)
            with refusing(SpaceExists, "create_space with another durability"):
                store.create_space("space", 4, "buffered")
        same(list(self.stranger().get_spaces()), ["space"], "the spaces")
        same(list(self.stranger().get_segments("space")), [], "the segments of a space that nobody wrote to")
        same(list(self.stranger().consume_space("space")), [], "the entries of a space that nobody wrote to")

    def test_a_first_write_creates_one_partition(self) -> None:
        """A space that a first write created has other settings than the default ones."""
        self.put("space", "s", [b"1"])
        self.store.create_space("space")
        self.stranger().create_space("space", partitions=1, durability="committed")
        with refusing(SpaceExists, "two partitions afterwards"):
            self.store.create_space("space", partitions=2)
        same(self.payloads("space", "s"), [b"1"], "the segment")

    def test_wrong_settings_are_refused(self) -> None:
        """A setting of the wrong type or value was taken, ended in another error, or left something behind."""
        create: Any = self.store.create_space
        cases: list[tuple[type[Exception], dict[str, Any]]] = [
            *((TypeError, {"partitions": wrong}) for wrong in ("4", 1.5, True, None)),
            *((ValueError, {"partitions": wrong}) for wrong in (0, -1, 1 << 40)),
            *((TypeError, {"durability": wrong}) for wrong in (None, 1, b"committed", ["committed"])),
            *((ValueError, {"durability": wrong}) for wrong in ("", "ephemeral", "Committed")),
            *((TypeError, {"idempotency_window": wrong}) for wrong in (None, "1", True)),
            *((ValueError, {"idempotency_window": wrong}) for wrong in (0, -1, float("nan"))),
        ]
        for error, settings in cases:
            with refusing(error, f"create_space with {settings}"):
                create("space", **settings)
        same(list(self.stranger().get_spaces()), [], "the spaces")

    def test_some_settings_can_be_changed(self) -> None:
        """A harmless change of settings was refused, a change below the guarantee of other processes was accepted, or a
        key was lost."""
        self.store.create_space("space", idempotency_window=1000.0, archive_grace=600.0)
        self.store.produce("space", "s", [Record(b"1")], idempotency_key="once")
        for store in (self.store, self.stranger()):
            store.change_space("space", idempotency_window=100.0)
            store.change_space("space", archive_grace=60.0)
            store.change_space("space", idempotency_window=float("inf"), archive_grace=86_400.0)
            store.change_space("space")
            with refusing(ValueError, "less than a tenth of the window that the space was created with"):
                store.change_space("space", idempotency_window=99.0)
            with refusing(ValueError, "less than a tenth of the grace that the space was created with"):
                store.change_space("space", idempotency_window=500.0, archive_grace=59.0)
            with refusing(TypeError, "a grace that is no number"):
                store.change_space("space", archive_grace="60")  # type: ignore[arg-type]
            store.create_space("space", idempotency_window=1000.0, archive_grace=600.0)
            store.maintain()
            same(store.produce("space", "s", [Record(b"1")], idempotency_key="once").last_sequence, 1, "a key again")
        self.put("space", "s", [b"2"])
        same(self.payloads("space", "s", self.stranger()), [b"1", b"2"], "the segment")
        self.agree("space")
        hold(self.store.verify("space").ok, f"verify after changes: {self.store.verify('space').findings}")

    def test_buffered_writes_are_read_at_once(self) -> None:
        """A write into a buffered space was acknowledged and not visible to everyone."""
        self.store.create_space("space", durability="buffered")
        for number in range(1, 6):
            self.put("space", "s", [b"%d" % number])
            same(self.payloads("space", "s", self.stranger()), numbered(1, number), "what a stranger reads")
        self.agree("space")

    def test_a_deleted_store_is_gone(self) -> None:
        """A deleted store was still listed or readable, or could not be made again, or an old entry came back."""
        self.store.create_space("old", partitions=4)
        self.put("space", "s", numbered(1, 3))
        self.client.delete_store(self.store_id)
        hold(self.store_id not in set(self.connect().stores()), "the deleted store is still listed")
        fresh = self.stranger()
        same(list(fresh.get_spaces()), [], "the spaces of a deleted store")
        same(self.payloads("space", "s", fresh), [], "a segment of a deleted store")
        self.put("space", "s", [b"new"], fresh)
        same(self.payloads("space", "s", self.stranger()), [b"new"], "a store that was made again")
        same(list(self.stranger().get_spaces()), ["space"], "the spaces of a store that was made again")
        self.client.delete_store(str(self.store_id))
        self.client.delete_store(self.store_id)
        self.client.delete_store(uuid4())

    def test_wrong_store_ids_are_refused(self) -> None:
        """A store id that is no UUID was taken, or ended in another error."""
        call: Any
        for call in (self.client.store, self.client.delete_store):
            for wrong in (None, 5, b"x" * 16, ["x"]):
                with refusing(TypeError, f"{wrong!r} as a store id"):
                    call(wrong)
            for text in ("", "x", "7d9f2c1e", str(uuid4()) + "0", "../" + str(uuid4())):
                with refusing(ValueError, f"{text!r} as a store id"):
                    call(text)

    def test_a_closed_store_refuses_everything(self) -> None:
        """A store that was closed answered, failed with another error, or could not be closed again."""
        self.put("space", "s", [b"1"])
        other = self.stranger()
        same(self.payloads("space", "s", other), [b"1"], "the segment")
        begun = other.consume_space("space")
        other.close()
        other.close()
        self.check_closed(other)
        with refusing(StoreClosed, "a reader that was made before the store was closed"):
            list(begun)
        with self.connect() as client:
            inner = client.store(self.store_id)
            self.payloads("space", "s", inner)
        client.close()
        self.check_closed(inner)
        with refusing(StoreClosed, "store() of a closed client"):
            client.store(self.store_id)
        with refusing(StoreClosed, "stores() of a closed client"):
            list(client.stores())
        with refusing(StoreClosed, "delete_store() of a closed client"):
            client.delete_store(self.store_id)
        with self.stranger() as inner:
            pass
        self.check_closed(inner)
        same(self.payloads("space", "s"), [b"1"], "the segment after all")

    def check_closed(self, store: Any) -> None:
        calls: dict[str, Callable[[], object]] = {
            **calls_with(store, "space", "s"),
            "create_space": lambda: store.create_space("other"),
            "get_spaces": lambda: list(store.get_spaces()),
            "get_segments": lambda: list(store.get_segments("space")),
            "consume_space": lambda: list(store.consume_space("space")),
            "consume": lambda: list(store.consume({"space": None})),
            "follow_space": lambda: list(store.follow_space("space", timeout=0)),
            "subscribe_to_space": lambda: list(store.subscribe_to_space("space", timeout=0)),
            "lease": lambda: store.with_lease("leader", lambda lease: None),
            "outcome": lambda: store.outcome(uuid4()),
            "maintain": lambda: store.maintain(),
        }
        for what, call in calls.items():
            with refusing(StoreClosed, f"{what} of a closed store"):
                _drain(call())

    def test_closing_one_store_leaves_others_open(self) -> None:
        """Closing a store disturbed another one of the same client, or the same one of another client."""
        self.put("space", "s", [b"1"])
        neighbour, other = self.client.store(uuid4()), self.stranger()
        same(self.payloads("space", "s", other), [b"1"], "the other client's store")
        same(list(neighbour.get_spaces()), [], "the neighbour's spaces")
        self.store.close()
        same(self.payloads("space", "s", other), [b"1"], "the other client's store")
        same(list(neighbour.get_spaces()), [], "the neighbour's spaces")
        again = self.client.store(self.store_id)
        same(self.payloads("space", "s", again), [b"1"], "the store, opened again")

    def test_closing_a_handle_leaves_others_open(self) -> None:
        """Closing a store closed it for another one who had asked the same client for it, or left it usable."""
        self.put("space", "s", [b"1"])
        begun = self.store.follow_space("space")
        next(begun)
        with self.client.store(self.store_id) as handle:
            self.put("space", "s", [b"2"], handle)
            reader = handle.consume_space("space")
            next(reader)
        self.check_closed(handle)
        with refusing(StoreClosed, "a reader that was begun before its handle was closed"):
            list(reader)
        same(self.payloads("space", "s"), [b"1", b"2"], "what another handle reads")
        same(next(begun).payload, b"2", "what another handle's follower reads")
        self.put("space", "s", [b"3"])
        same(self.payloads("space", "s", self.stranger()), numbered(1, 3), "what another handle wrote")


def _drain(found: Any) -> None:
    if hasattr(found, "__next__"):
        for _ in found:
            pass
