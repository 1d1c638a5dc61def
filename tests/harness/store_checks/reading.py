"""Reading a segment or several spaces: bounds, limits, laziness, one consistent state."""

from __future__ import annotations

import contextlib
import copy
import json
import pickle
from collections.abc import Callable
from itertools import islice
from typing import Any

from streamkit.model import Entry, Record
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, numbered, refusing

__all__ = ["Reading"]


class Reading(StoreSubject):
    def fill_mixed(self, space: str, batches: int = 30) -> None:
        """Segments a, ab and abc, in batches of one to four, some of them in one transaction."""
        for number in range(batches):
            with self.store.transaction(space) as trx:
                for segment in ("{t}a", "{t}ab", "{t}abc")[: 1 + number % 3]:
                    trx.produce(segment, [Record(b"%d.%d" % (number, at)) for at in range(1 + number % 4)])
            self.put(space, f"s{number % 5}", [b"%d" % number])

    def test_readers_agree_whoever_reads(self) -> None:
        """Two readers of the same data told different things, before or after the index was brought forward."""
        for space in self.spaces():
            self.fill_mixed(space)
            other = self.stranger()
            seen = self.agree(space, other)
            self.stranger().maintain()
            self.fill_mixed(space, 3)
            more = self.agree(space)
            same(more[: len(seen)], seen, "what was read before another's maintain()")
            hold(len(more) > len(seen), "what was written after maintain() is not read")
            for reader in (other, self.stranger()):
                same(self.agree(space, reader), more, "what a stranger reads after maintain() and more writes")

    def test_the_bounds_of_sequences_are_inclusive(self) -> None:
        """consume_segment with min_sequence and max_sequence gave other entries than those between."""
        for space in self.spaces():
            for first, last in ((1, 1), (2, 5), (6, 6), (7, 12)):
                self.put(space, "s", numbered(first, last))
            for low in (0, 1, 2, 5, 6, 11, 12, 13, 1 << 62):
                for high in (0, 1, 2, 5, 6, 12, 13, 1 << 62):
                    found = self.store.consume_segment(space, "s", min_sequence=low, max_sequence=high)
                    wanted = [] if high and low > high else numbered(max(low, 1), min(high or 12, 12))
                    if low > 12:
                        wanted = []
                    same([entry.payload for entry in found], wanted, f"sequences {low} to {high}")

    def test_the_bounds_of_timestamps_are_inclusive(self) -> None:
        """A reader with min_timestamp and max_timestamp gave other entries than those between."""
        for space in self.spaces():
            self.fill_mixed(space, 8)
            entries = list(self.store.consume_space(space))
            stamps = sorted({entry.timestamp for entry in entries})
            edges = {stamps[0], stamps[-1], stamps[len(stamps) // 2]}
            for low in (0, *(edge + step for edge in edges for step in (0, 1))):
                for high in (0, *(edge - step for edge in edges for step in (0, 1))):

                    def wanted(entries: list[Entry], low: int = low, high: int = high) -> list[Entry]:
                        return [e for e in entries if low <= e.timestamp and (e.timestamp <= high or not high)]

                    what = f"timestamps {low} to {high} out of {stamps}"
                    bounds: dict[str, Any] = {"min_timestamp": low, "max_timestamp": high}
                    same(list(self.store.consume_space(space, **bounds)), wanted(entries), f"{what} of a space")
                    same(list(self.store.consume({space: None}, **bounds)), wanted(entries), f"{what}, consume")
                    for segment in ("{t}a", "s1"):
                        of_segment = [entry for entry in entries if entry.segment == segment]
                        found = list(self.store.consume_segment(space, segment, **bounds))
                        same(found, wanted(of_segment), f"{what} of a segment")

    def test_bounds_and_limits_combine(self) -> None:
        """Bounds, offset and limit together gave other entries than each after the other."""
        for space in self.spaces():
            self.fill_mixed(space, 8)
            entries = list(self.store.consume_space(space))
            middle = entries[len(entries) // 2]
            for limit in (1, 2, 3, 7, 1000):
                after = entries[entries.index(middle) + 1 :]
                found = list(self.store.consume_space(space, offset=middle.space_offset, limit=limit))
                same(found, after[:limit], f"{limit} entries after an offset")
                found = list(self.store.consume_space(space, min_timestamp=middle.timestamp, limit=limit))
                later = [entry for entry in entries if entry.timestamp >= middle.timestamp]
                same(found, later[:limit], f"{limit} entries from a timestamp")
                segment = [entry for entry in entries if entry.segment == "{t}a"]
                found = list(self.store.consume_segment(space, "{t}a", min_sequence=3, limit=limit))
                same(found, segment[2:][:limit], f"{limit} entries from sequence 3")
                found = list(self.store.consume({space: middle.space_offset}, limit=limit))
                same(found, after[:limit], f"{limit} entries of consume after an offset")

    def test_wrong_bounds_are_refused(self) -> None:
        """A bound of the wrong type or value was taken, or ended in another error."""
        self.put("space", "s", [b"1"])
        readers: dict[str, tuple[Callable[..., Any], tuple[str, ...]]] = {
            "consume_space": (lambda **bounds: self.store.consume_space("space", **bounds), ()),
            "consume": (lambda **bounds: self.store.consume({"space": None}, **bounds), ()),
            "consume_segment": (
                lambda **bounds: self.store.consume_segment("space", "s", **bounds),
                ("min_sequence", "max_sequence"),
            ),
        }
        wrong: Any
        types: tuple[Any, ...] = ("1", 1.5, True, b"1", [1])
        for name, (read, more) in readers.items():
            for bound in ("min_timestamp", "max_timestamp", "limit", *more):
                for wrong in types:
                    with refusing(TypeError, f"{name} with {bound}={wrong!r}"):
                        read(**{bound: wrong})
                with refusing(ValueError, f"{name} with {bound}=-1"):
                    read(**{bound: -1})
        for wrong in types:
            with refusing(TypeError, f"follow_segment after {wrong!r}"):
                self.store.follow_segment("space", "s", after=wrong)
        with refusing(ValueError, "follow_segment after -1"):
            self.store.follow_segment("space", "s", after=-1)
        for wrong in (None, "space", ["space"], 5, [("space", None)]):
            with refusing(TypeError, f"consume({wrong!r})"):
                self.store.consume(wrong)
        for wrong in ("1", True, [1]):
            with refusing(TypeError, f"timeout={wrong!r}"):
                self.store.follow_space("space", timeout=wrong)
        for wrong in (-1, float("nan")):
            with refusing(ValueError, f"timeout={wrong}"):
                self.store.subscribe_to_space("space", timeout=wrong)

    def test_consume_merges_spaces_by_timestamp(self) -> None:
        """consume of several spaces lost or doubled an entry, or broke the order of a space or of time."""
        self.store.create_space("c", partitions=4)
        for number in range(12):
            for space in ("a", "b", "c")[: 1 + number % 3]:
                self.put(space, f"s{number % 4}", [b"%d" % number] * (1 + number % 2))
        whole = {space: list(self.store.consume_space(space)) for space in ("a", "b", "c")}
        merged = list(self.store.consume(dict.fromkeys(whole)))
        for space, entries in whole.items():
            same([entry for entry in merged if entry.space == space], entries, f"the entries of {space!r}, merged")
        same(len(merged), sum(map(len, whole.values())), "the number of entries, merged")
        stamps = [entry.timestamp for entry in merged]
        same(stamps, sorted(stamps), "the timestamps of the merged entries")
        offsets = {space: entries[len(entries) // 2].space_offset for space, entries in whole.items()}
        found = list(self.store.consume({**offsets, "unknown": None}))
        for space, entries in whole.items():
            rest = entries[len(entries) // 2 + 1 :]
            same([entry for entry in found if entry.space == space], rest, f"the entries of {space!r} after an offset")

    def test_reading_is_lazy(self) -> None:
        """A reader read when it was made, or a call that reads failed before it was read from."""
        readers = [
            self.store.consume_segment("space", "s"),
            self.store.consume_space("space"),
            self.store.consume({"space": None}),
            self.store.follow_segment("space", "s", timeout=0),
            self.store.follow_space("space", timeout=0),
        ]
        self.put("space", "s", [b"1"])
        for reader in readers:
            same([entry.payload for entry in reader], [b"1"], "what was written before the first entry was asked for")
            same(list(reader), [], "a reader after its end")

    def test_a_reader_sees_one_state(self) -> None:
        """A reader saw an entry that was written after its first one, or such an entry hid another from it."""
        for space in self.spaces():
            self.fill_mixed(space, 20)
            whole = list(self.store.consume_space(space))
            segment = [entry for entry in whole if entry.segment == "{t}a"]
            other = self.stranger()
            for store in (self.store, other):
                readers = [
                    (store.consume_space(space), whole),
                    (store.consume_segment(space, "{t}a"), segment),
                    (store.consume({space: None}), whole),
                ]
                begun = [(list(islice(reader, 2)), reader, wanted) for reader, wanted in readers]
                self.fill_mixed(space, 4)
                other.maintain()
                for first, reader, wanted in begun:
                    same(first + list(reader), wanted, "what a reader saw that began before more was written")
                whole = list(self.store.consume_space(space))
                segment = [entry for entry in whole if entry.segment == "{t}a"]

    def test_peek_sees_every_write(self) -> None:
        """peek or the status gave an entry that was not the latest."""
        for space in self.spaces():
            other = self.stranger()
            for number in range(1, 13):
                writer, reader = (self.store, other) if number % 2 else (other, self.store)
                self.put(space, "s", [b"%d" % number], writer)
                if number % 5 == 0:
                    self.stranger().maintain()
                for store in (writer, reader):
                    entry = store.peek(space, "s")
                    same((entry.sequence, entry.payload), (number, b"%d" % number), "the latest entry")
                    same(store.segment_status(space, "s").last_sequence, number, "the last sequence of the status")

    def test_reading_backwards_is_reading_forwards_turned_round(self) -> None:
        """`reverse=True` gave other entries, another order or other offsets, or its limit was not for the last ones."""
        same(list(self.store.consume_space("unknown", reverse=True)), [], "an unknown space, backwards")
        same(list(self.store.consume_segment("unknown", "s", reverse=True)), [], "an unknown segment, backwards")
        for space in self.spaces():
            self.fill_mixed(space)
            for store in (self.store, self.stranger()):
                self.check_backwards(space, store)
            self.stranger().maintain(space)
            self.fill_mixed(space, 5)
            for store in (self.store, self.stranger()):
                self.check_backwards(space, store)
            begun = self.store.consume_space(space, reverse=True)
            first = next(begun)
            entries = list(self.store.consume_space(space))
            self.put(space, "s0", [b"later"])
            same([first, *begun], entries[::-1], "what was begun before another write")
        for wrong in (1, "yes", None):
            with refusing(TypeError, f"reverse={wrong!r}"):
                self.store.consume_space("space", reverse=wrong)  # type: ignore[arg-type]
            with refusing(TypeError, f"reverse={wrong!r}"):
                self.store.consume_segment("space", "s", reverse=wrong)  # type: ignore[arg-type]

    def check_backwards(self, space: str, store: Store) -> None:
        entries = list(store.consume_space(space))
        found = list(store.consume_space(space, reverse=True))
        same(found, entries[::-1], "the space, backwards")
        same([e.space_offset for e in found], [e.space_offset for e in entries][::-1], "the offsets, backwards")
        for at in (0, 7, len(entries) // 2, len(entries) - 2):
            offset, moment = entries[at].space_offset, entries[at].timestamp
            same(list(store.consume_space(space, offset=offset, reverse=True)), entries[:at:-1], "down to an offset")
            times: list[dict[str, Any]] = [{"min_timestamp": moment}, {"max_timestamp": moment}, {"max_timestamp": 1}]
            for bounds in times:
                forwards = list(store.consume_space(space, **bounds))
                same(list(store.consume_space(space, reverse=True, **bounds)), forwards[::-1], f"with {bounds}")
        for limit in (1, 2, 5, 1000):
            same(
                list(store.consume_space(space, limit=limit, reverse=True)), entries[::-1][:limit], f"the last {limit}"
            )
        for segment in ("{t}a", "{t}abc", "s3", "none"):
            entries = list(store.consume_segment(space, segment))
            ranges: list[dict[str, Any]] = [
                {},
                {"limit": 1},
                {"limit": 3},
                {"min_sequence": 3},
                {"max_sequence": 5},
                {"min_sequence": 2, "max_sequence": 4, "limit": 2},
                {"min_sequence": 5, "max_sequence": 2},
                {"min_timestamp": entries[len(entries) // 2].timestamp if entries else 1},
                {"max_timestamp": entries[len(entries) // 2].timestamp if entries else 1},
            ]
            for bounds in ranges:
                limit = bounds.pop("limit", 0)
                wanted = list(store.consume_segment(space, segment, **bounds))[::-1]
                again = list(store.consume_segment(space, segment, limit=limit, reverse=True, **bounds))
                same(again, wanted[:limit] if limit else wanted, f"segment {segment!r}, {bounds}, limit {limit}")

    def test_entries_cannot_be_changed(self) -> None:
        """A change of one reader to an entry or its metadata was seen by the next one; or it is no plain value."""
        self.store.produce("space", "s", [Record(b"1", {"k": "v"}), Record(b"2")])
        entry, plain = self.store.consume_space("space")
        readers: tuple[Callable[[], Entry], ...] = (
            lambda: next(self.store.consume_space("space")),
            lambda: next(self.store.consume_segment("space", "s")),
            lambda: next(self.store.follow_space("space", timeout=0)),
            lambda: self.store.peek("space", "s"),
        )
        for reader in readers:
            for change in _CHANGES:
                found: Any = reader()
                with contextlib.suppress(TypeError, AttributeError, KeyError):
                    change(found)
                hold(reader() == (entry if found.sequence == 1 else plain), "a reader changed what others see")
        same(entry.metadata, {"k": "v"}, "the metadata")
        same(plain.metadata, {}, "metadata that there are none of")
        for one in (entry, plain):
            same(pickle.loads(pickle.dumps(one)), one, "the entry, pickled")
            same(copy.deepcopy(one), one, "a copy of the entry")
            same(json.loads(json.dumps(one.metadata)), dict(one.metadata), "the metadata as JSON")
            hold(repr(dict(one.metadata)) in repr(one), f"the entry's repr is {one!r}")
            dict(one.metadata)["new"] = "x"
        self.store.produce("space", "copy", [Record(entry.payload, entry.metadata), Record(b"", plain.metadata)])
        same(next(self.store.consume_segment("space", "copy")).metadata, {"k": "v"}, "metadata that were written again")


_CHANGES: tuple[Callable[[Any], object], ...] = (
    lambda entry: entry.metadata.__setitem__("k", "x"),
    lambda entry: entry.metadata.update(k="x"),
    lambda entry: entry.metadata.__ior__({"k": "x"}),
    lambda entry: entry.metadata.setdefault("new", "x"),
    lambda entry: entry.metadata.__delitem__("k"),
    lambda entry: entry.metadata.pop("k"),
    lambda entry: entry.metadata.popitem(),
    lambda entry: entry.metadata.clear(),
    lambda entry: setattr(entry, "metadata", {}),
    lambda entry: setattr(entry, "payload", b"x"),
    lambda entry: setattr(entry.trx, "number", 7),
    lambda entry: setattr(entry.origin, "tier", "x"),
)
