"""Names: every legal one is distinct from every other, and no other is taken."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from streamkit.errors import InvalidName
from streamkit.model import Record, SegmentStatus
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, refusing

__all__ = ["ILLEGAL", "NAMES", "ODD", "TYPES", "Naming", "calls_with"]

NAMES = ("a", "ab", "abc", "a/b", "a b", "1", "10", "100", "é", "🎉", "order-4", "order-42")
ODD = (
    *("A", ".", "..", "...", " ", "a ", " a", "a.", "a/", "/", "//", "\\", "#", "?", "%", "%41", "%2F", "'", '"', "+"),
    *("e\u0301", "\u00a0", "\u2028", "\ufeff", "\uffff", "\U00010000", "{", "{}", "{a}", "{a}b", "**", "*a", "-", "_"),
    *("order-4 ", "order-4\u00ff", "x" * 255, "x" * 254, "é" * 127, "🎉" * 63, "con", "INV", "SEGMENTS", "__proto__"),
)
ILLEGAL = (
    *("", "*", "\0", "a\0", "\0a", "a\nb", "\t", "\x1f", "\x7f", "\x80", "\x9f", "\ud800", "a\udfff"),
    *("x" * 256, "é" * 128, "🎉" * 64),
)
TYPES: tuple[Any, ...] = (None, b"a", 1, 1.5, True, ["a"], ("a",), object())


def calls_with(store: Store, space: Any, segment: Any) -> dict[str, Callable[[], object]]:
    """The calls that take a space and a segment, read to their ends."""
    record = [Record(b"x")]

    def in_transaction() -> None:
        with store.transaction(space) as trx:
            trx.produce(segment, record)

    return {
        "produce": lambda: store.produce(space, segment, record),
        "produce nothing": lambda: store.produce(space, segment, []),
        "transaction": in_transaction,
        "peek": lambda: store.peek(space, segment),
        "segment_status": lambda: store.segment_status(space, segment),
        "consume_segment": lambda: store.consume_segment(space, segment),
        "follow_segment": lambda: store.follow_segment(space, segment, timeout=0),
        "subscribe_to_segment": lambda: store.subscribe_to_segment(space, segment, timeout=0),
    }


def calls_with_space(store: Store, space: Any) -> dict[str, Callable[[], object]]:
    """The calls that take a space alone."""
    calls: dict[str, Callable[[], object]] = {
        "create_space": lambda: store.create_space(space),
        "consume_space": lambda: store.consume_space(space),
        "get_segments": lambda: store.get_segments(space),
        "follow_space": lambda: store.follow_space(space, timeout=0),
        "subscribe_to_space": lambda: store.subscribe_to_space(space, timeout=0),
    }
    if getattr(space, "__hash__", None) is not None:
        calls["consume"] = lambda: store.consume({space: None})
    return calls


class Naming(StoreSubject):
    def fill_all(self, spaces: Iterable[str], segments: Iterable[str]) -> None:
        for space in spaces:
            for segment in segments:
                self.put(space, segment, [f"{space} | {segment} | {number}".encode() for number in (1, 2)])

    def check_all(self, spaces: tuple[str, ...], segments: tuple[str, ...]) -> None:
        for store in (self.store, self.stranger()):
            same(list(store.get_spaces()), sorted(spaces), "the names of the spaces, in code-point order")
            for space in spaces:
                same(list(store.get_segments(space)), sorted(segments), f"the segments of {space!r}, in order")
                for segment in segments:
                    wanted = [f"{space} | {segment} | {number}".encode() for number in (1, 2)]
                    same(self.payloads(space, segment, store), wanted, f"segment {segment!r} of space {space!r}")

    def test_similar_names_are_kept_apart(self) -> None:
        """Names that are alike, prefixes of each other for instance, got each other's entries."""
        self.fill_all(["a"], NAMES)
        self.check_all(("a",), NAMES)
        same(len(self.agree("a")), 2 * len(NAMES), "the entries of the space")

    def test_similar_names_of_spaces_are_kept_apart(self) -> None:
        """Spaces whose names are alike, prefixes of each other for instance, got each other's entries."""
        segments = ("a", "order-4", "order-42")
        self.fill_all(NAMES, segments)
        self.check_all(NAMES, segments)
        for space in NAMES[::3]:
            same(len(self.agree(space, self.stranger())), 2 * len(segments), f"the entries of space {space!r}")

    def test_odd_segment_names_are_legal_and_distinct(self) -> None:
        """A legal segment name was refused, changed, or taken for another."""
        self.fill_all(["a"], ODD)
        self.check_all(("a",), ODD)

    def test_odd_space_names_are_legal_and_distinct(self) -> None:
        """A legal space name was refused, changed, or taken for another."""
        self.fill_all(ODD, ["a"])
        self.check_all(ODD, ("a",))

    def test_names_are_kept_apart_on_four_partitions(self) -> None:
        """Names that are alike got each other's entries in a space of four partitions."""
        self.store.create_space("many", partitions=4)
        self.fill_all(["many"], NAMES)
        self.check_all(("many",), NAMES)
        same(len(self.agree("many")), 2 * len(NAMES), "the entries of the space")

    def test_segments_are_listed_by_prefix_in_pages(self) -> None:
        """A list of segments by prefix, or in pages, lacked a name, had another one, or one with a wrong status."""
        for space in self.spaces():
            self.fill_all([space], NAMES)
            self.store.delete_segment(space, NAMES[3])
            names = sorted({*NAMES} - {NAMES[3]})
            for store in (self.store, self.stranger()):
                for prefix in ("", "order-4", "order-42", "a", "nothing"):
                    wanted = [name for name in names if name.startswith(prefix)]
                    same(list(store.get_segments(space, prefix=prefix)), wanted, f"the segments from {prefix!r} on")
                    found: list[SegmentStatus] = []
                    after: str | None = None
                    while page := list(store.segment_statuses(space, prefix=prefix, after=after, limit=3)):
                        hold(len(page) <= 3, f"a page of {len(page)} segments with limit=3")
                        found += page
                        after = page[-1].segment
                    same([status.segment for status in found], wanted, f"the pages of segments from {prefix!r} on")
                    same(found, [store.segment_status(space, name) for name in wanted], "the statuses in pages")
                self.store.maintain()
        unknown: Any = self.store
        same(list(unknown.segment_statuses("unknown")), [], "the statuses of an unknown space")
        for error, options in (
            (TypeError, {"prefix": None}),
            (TypeError, {"prefix": b"a"}),
            (InvalidName, {"prefix": "\ud800"}),
            (InvalidName, {"after": ""}),
            (TypeError, {"limit": "1"}),
            (ValueError, {"limit": -1}),
        ):
            for call in (unknown.get_segments, unknown.segment_statuses):
                with refusing(error, f"{call.__name__}(…, {options})"):
                    call("a", **options)

    def test_no_other_name_is_taken(self) -> None:
        """A name that is not legal was taken, or something was written under it."""
        self.put("a", "a", [b"1"])
        with self.nothing_written("a"):
            self.check_refused(InvalidName, ILLEGAL)

    def test_names_of_another_type_are_refused(self) -> None:
        """A name that is no text was taken, or ended in another error than TypeError."""
        self.put("a", "a", [b"1"])
        with self.nothing_written("a"):
            self.check_refused(TypeError, TYPES)

    def check_refused(self, error: type[Exception], names: Iterable[Any]) -> None:
        for name in names:
            for what, call in {**calls_with(self.store, name, "a"), **calls_with_space(self.store, name)}.items():
                with refusing(error, f"{what} with the space {name!r}"):
                    call()
            for what, call in calls_with(self.store, "a", name).items():
                with refusing(error, f"{what} with the segment {name!r}"):
                    call()

    def test_unknown_names_read_empty(self) -> None:
        """A read of an unknown name failed, found something, or left a trace."""
        self.put("known", "known", [b"1"])
        for space, segment in (("known", "unknown"), ("unknown", "known"), ("unknown", "unknown"), ("know", "known")):
            entry = self.store.peek(space, segment)
            same((entry.space, entry.segment, entry.sequence), (space, segment, 0), "peek of an unknown segment")
            same((entry.payload, entry.timestamp), (b"", 0), "payload and timestamp of no entry")
            status = self.store.segment_status(space, segment)
            same((status.space, status.segment), (space, segment), "the names in the status of an unknown segment")
            same((status.first_sequence, status.first_timestamp), (0, 0), "the first entry of an unknown segment")
            same((status.last_sequence, status.last_timestamp), (0, 0), "the last entry of an unknown segment")
            same(list(self.store.consume_segment(space, segment)), [], "an unknown segment")
            same(list(self.store.follow_segment(space, segment, timeout=0)), [], "following an unknown segment")
        same(list(self.store.consume_space("unknown")), [], "an unknown space")
        same(list(self.store.consume({"unknown": None, "nobody": None})), [], "unknown spaces")
        same(list(self.store.consume({})), [], "consume of no space")
        same(list(self.store.get_segments("unknown")), [], "the segments of an unknown space")
        same(list(self.store.follow_space("unknown", timeout=0)), [], "following an unknown space")
        same(list(self.store.subscribe_to_space("unknown", timeout=0)), [], "a subscription to an unknown space")
        same(list(self.store.get_spaces()), ["known"], "the spaces after reading others")
