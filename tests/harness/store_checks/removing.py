"""Removing: trim, retention, erase, delete, and the reports of removed entries to readers."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

from streamkit.errors import EntriesRemoved, InvalidOffset, SpaceFull, TransactionTooLarge
from streamkit.gaps import Gap
from streamkit.model import Entry, Record
from streamkit.names import partition_of
from streamkit.retention import Retention
from streamkit.store import Store
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, numbered, refusing

__all__ = ["Removing"]


class Removing(StoreSubject):
    def readers(self) -> Iterator[tuple[str, Store]]:
        """The store as it is known here, as it is read by a stranger, and both after upkeep."""
        yield "the one that removed", self.store
        yield "a stranger", self.stranger()
        self.store.maintain()
        yield "the one that removed, after upkeep", self.store
        yield "a stranger, after upkeep", self.stranger()

    def sequences(self, store: Store, space: str, segment: str, **options: object) -> list[int]:
        return [one.sequence for one in store.consume_segment(space, segment, **options)]  # type: ignore[arg-type]

    def test_a_trimmed_segment_begins_at_its_floor(self) -> None:
        """A segment that is trimmed shows what was removed, or loses what was not."""
        for space in self.spaces():
            for _ in range(6):
                self.put(space, "s", [b"x", b"y"])
                self.put(space, "other", [b"z"])
            same(self.store.trim(space, "s", before=6, dry_run=True).entries, 5, "entries of a dry run")
            same(self.sequences(self.store, space, "s")[0], 1, "the first entry after a dry run")
            same(self.store.trim(space, "s", before=6).entries, 5, "entries that a trim reports")
            for who, store in self.readers():
                same(self.sequences(store, space, "s"), list(range(6, 13)), f"the segment to {who}")
                same(self.sequences(store, space, "s", reverse=True), list(range(12, 5, -1)), f"backwards to {who}")
                same(store.segment_status(space, "s").first_sequence, 6, f"the first sequence to {who}")
                inside = [one.sequence for one in store.consume_space(space) if one.segment == "s"]
                same(inside, list(range(6, 13)), f"the segment in its space to {who}")
                same(len(list(store.consume_space(space))), 13, f"entries of the space to {who}")
            hold(self.store.verify(space).ok, f"verify after a trim: {self.store.verify(space).findings}")

    def test_gaps_are_told_as_asked(self) -> None:
        """A reader that names a removed place gets no report, or one about entries that exist."""
        self.put("a", "s", numbered(1, 10))
        self.store.trim("a", "s", before=6)
        gap = Gap("a", "s", 3, 5, "trimmed")
        for who, store in self.readers():
            with refusing(EntriesRemoved, f"min_sequence 3, to {who}") as refused:
                list(store.consume_segment("a", "s", min_sequence=3))
            same(refused.error.gap, gap, f"the gap to {who}")
            same(self.sequences(store, "a", "s", min_sequence=3, gaps="skip"), [6, 7, 8, 9, 10], f"skipped to {who}")
            found = list(store.consume_segment("a", "s", min_sequence=3, gaps="yield"))
            same((found[0], len(found)), (gap, 6), f"yielded to {who}")
            same(self.sequences(store, "a", "s", min_sequence=6), [6, 7, 8, 9, 10], f"from the floor, to {who}")
            with refusing(EntriesRemoved, f"a follower after 2, to {who}"):
                list(store.follow_segment("a", "s", after=2, timeout=0))
            same(len(list(store.follow_segment("a", "s", after=5, timeout=0))), 5, f"a follower after 5, to {who}")
            same(len(list(store.follow_segment("a", "s", timeout=0))), 5, f"a follower from the beginning, to {who}")

    def test_a_trimmed_space_begins_at_its_floor(self) -> None:
        """A space that is trimmed shows what was removed, or an offset does not find its place."""
        for space in self.spaces():
            for number in range(12):
                self.put(space, f"s{number % 3}", [b"a", b"b"])
            entries = list(self.store.consume_space(space))
            early, late = entries[3].space_offset, entries[11].space_offset
            report = self.store.trim(space, before=late)
            same(report.entries, 12, "entries that a trim reports")
            for who, store in self.readers():
                same(list(store.consume_space(space)), entries[12:], f"the space to {who}")
                same(list(store.consume_space(space, offset=late)), entries[12:], f"from the offset, to {who}")
                with refusing(EntriesRemoved, f"from an offset that is gone, to {who}"):
                    list(store.consume_space(space, offset=early))
                same(list(store.consume_space(space, offset=early, gaps="skip")), entries[12:], f"skipped, to {who}")
                found = list(store.consume_space(space, offset=early, gaps="yield"))
                hold(any(isinstance(one, Gap) for one in found), f"no gap to {who}")
                same([one for one in found if isinstance(one, Entry)], entries[12:], f"yielded, to {who}")
                for name in ("s0", "s1", "s2"):
                    of_it = [entry for entry in entries[12:] if entry.segment == name]
                    same(list(store.consume_segment(space, name)), of_it, f"segment {name} to {who}")
                    first = store.segment_status(space, name).first_sequence
                    same(first, of_it[0].sequence if of_it else 9, f"first of {name} to {who}")
            hold(self.store.verify(space).ok, f"verify after a trim: {self.store.verify(space).findings}")

    def test_what_was_trimmed_before_it_was_seen_is_told(self) -> None:
        """A reader who has seen nothing of a partition is not told that its first entries were trimmed."""
        self.store.create_space("four partitions", partitions=4)
        names = [f"s{number}" for number in range(40)]
        one, other = names[0], next(name for name in names if partition_of(name, 4) != partition_of(names[0], 4))
        self.put("four partitions", one, [b"a"])
        early = next(iter(self.store.consume_space("four partitions"))).space_offset
        follower = self.store.follow_space("four partitions", timeout=0)
        same([entry.segment for entry in follower], [one], "a follower")
        self.put("four partitions", other, [b"b"])
        self.store.trim("four partitions", before=self.store.end_offset("four partitions"))
        for who, store in self.readers():
            for reverse in (False, True):
                with refusing(EntriesRemoved, f"from an offset, reverse={reverse}, to {who}"):
                    list(store.consume_space("four partitions", offset=early, reverse=reverse))
            same(list(store.consume_space("four partitions")), [], f"from the beginning, to {who}")

    def test_sequences_go_on(self) -> None:
        """A sequence is given again after everything before it was removed."""
        self.put("a", "s", numbered(1, 5))
        self.put("a", "kept", [b"k"])
        self.store.delete_segment("a", "s")
        for who, store in self.readers():
            same(list(store.get_segments("a")), ["kept"], f"segments to {who}")
            same(self.sequences(store, "a", "s"), [], f"a deleted segment to {who}")
            same(store.peek("a", "s").sequence, 0, f"peek of a deleted segment to {who}")
            same(self.sequences(store, "a", "s", min_sequence=2), [], f"a place in a deleted segment, to {who}")
            status = store.segment_status("a", "s")
            same((status.first_sequence, status.last_sequence), (6, 5), f"the status to {who}")
        status = self.stranger().produce("a", "s", [Record(b"new")], expected_sequence=5)
        same((status.first_sequence, status.last_sequence), (6, 6), "after it was written to again")
        for who, store in self.readers():
            same(self.sequences(store, "a", "s"), [6], f"a segment that goes on, to {who}")
            same(list(store.get_segments("a")), ["kept", "s"], f"segments to {who}")

    def test_what_is_kept_is_what_was_asked(self) -> None:
        """keep_entries or keep_bytes keep more, or less."""
        for number in range(10):
            self.put("a", "s", [b"%010d" % number])
        self.store.trim("a", "s", keep_entries=7)
        same(self.sequences(self.store, "a", "s"), list(range(4, 11)), "of the segment, by entries")
        self.store.trim("a", "s", keep_bytes=45)
        same(self.sequences(self.store, "a", "s"), [7, 8, 9, 10], "of the segment, by bytes")
        self.store.trim("a", keep_entries=3)
        same(self.sequences(self.store, "a", "s"), [8, 9, 10], "of the space, by entries")
        self.store.trim("a", keep_bytes=20)
        same(self.sequences(self.store, "a", "s"), [9, 10], "of the space, by bytes")
        self.store.trim("a", "s", max_age=3600)
        same(self.sequences(self.store, "a", "s"), [9, 10], "of the segment, by age")
        with refusing(ValueError, "trim with two bounds"):
            self.store.trim("a", "s", keep_entries=1, keep_bytes=1)

    def test_a_retention_holds_at_once(self) -> None:
        """A reader sees what a retention has dropped, or a retention drops what it should keep."""
        for number in range(12):
            self.put("a", f"s{number % 2}", [b"x" * 10])
        self.store.set_retention("a", Retention(max_entries=4))
        for who, store in self.readers():
            same([self.sequences(store, "a", f"s{n}") for n in (0, 1)], [[3, 4, 5, 6]] * 2, f"by segment, to {who}")
            same(len(list(store.consume_space("a"))), 8, f"entries of the space to {who}")
        self.put("a", "s0", [b"y"])
        same(self.sequences(self.stranger(), "a", "s0"), [4, 5, 6, 7], "after one more")
        self.store.set_retention("a", Retention(max_entries=3, per="space"))
        for who, store in self.readers():
            same(len(list(store.consume_space("a"))), 3, f"by space, to {who}")
            same(sum(len(self.sequences(store, "a", f"s{n}")) for n in (0, 1)), 3, f"its segments, to {who}")

    def test_a_full_space_rejects(self) -> None:
        """A retention that rejects lets something in, or writes half of it."""
        self.store.set_retention("a", Retention(max_entries=3, when_full="reject"))
        self.put("a", "s", numbered(1, 3))
        with self.nothing_written("a"), refusing(SpaceFull, "a fourth entry"):
            self.put("a", "s", [b"4"])
        with self.nothing_written("a"), refusing(TransactionTooLarge, "four entries at once"):
            self.put("a", "other", numbered(1, 4))
        self.put("a", "other", [b"1"])
        self.store.trim("a", "s", keep_entries=1)
        self.put("a", "s", [b"4"])
        same(self.sequences(self.stranger(), "a", "s"), [3, 4], "after room was made")
        self.put("a", "s", [b"5"])
        for who, store in self.readers():
            self.store.trim("a", keep_entries=1)
            for _ in range(2):
                last = store.produce("a", "s", [Record(b"more")]).last_sequence
            with self.nothing_written("a"), refusing(SpaceFull, f"more than there is room for, by {who}"):
                store.produce("a", "s", [Record(b"more")])
            same(self.sequences(self.stranger(), "a", "s"), [last - 2, last - 1, last], f"room in the space, {who}")

    def test_a_bound_of_a_space_leaves_each_partition_a_share(self) -> None:
        """A retention hides every entry, as the share of a partition is nothing; or an error names the whole space."""
        self.store.create_space("a", 4)
        for number in range(8):
            self.put("a", f"s{number}", [b"x"])
        for retention in (Retention(max_entries=3, per="space"), Retention(max_bytes=3, per="space")):
            with refusing(ValueError, f"{retention}"):
                self.store.set_retention("a", retention)
        for who, store in self.readers():
            same(len(list(store.consume_space("a"))), 8, f"entries to {who}")
        self.store.set_retention("a", Retention(max_entries=4, per="space", when_full="reject"))
        with refusing(SpaceFull, "an entry more than the share of the partition") as found:
            for _ in range(2):
                self.put("a", "{s}", [b"x"])
        same("has one of 4 shares" in str(found.error), True, "the error names the share")

    def test_what_is_erased_is_given_out_no_more(self) -> None:
        """An erased entry is read, or another one is not."""
        for space in self.spaces():
            for number in range(8):
                record = [Record(b"secret %d" % number, {"of": f"p{number % 2}"}), Record(b"open %d" % number)]
                self.store.produce(space, f"user-{number % 2}", record)
            self.store.peek(space, "user-1")
            dry = self.store.erase(space, metadata={"of": "p1"}, dry_run=True)
            report = self.store.erase(space, metadata={"of": "p1"})
            same((dry.entries, report.entries, report.bytes), (4, 4, 4 * 8), "what the reports say")
            for who, store in self.readers():
                same(self.sequences(store, space, "user-1"), [2, 4, 6, 8], f"the segment to {who}")
                same(self.sequences(store, space, "user-1", min_sequence=1, reverse=True), [8, 6, 4, 2], f"back, {who}")
                same(len(list(store.consume_space(space))), 12, f"the space to {who}")
                found = list(store.consume_segment(space, "user-1", gaps="yield", limit=2))
                erased = Gap(space, "user-1", 1, 1, "erased")
                same((found[0], found[1].sequence), (erased, 2), f"with gaps, to {who}")
            self.store.erase(space, "user-[1-9]")
            self.store.erase(space, "user-0", first=7)
            for who, store in self.readers():
                same(self.sequences(store, space, "user-1"), [], f"a segment that was erased, to {who}")
                same(store.peek(space, "user-1").sequence, 0, f"its last entry, to {who}")
                same(store.peek(space, "user-0").sequence, 6, f"the last that is left, to {who}")
                same(len(list(store.follow_space(space, timeout=0))), 6, f"a follower of the space, {who}")
            same(self.store.produce(space, "user-1", [Record(b"n")]).last_sequence, 9, "the sequence that comes next")
            hold(self.store.verify(space).ok, f"verify after an erasure: {self.store.verify(space).findings}")
            with refusing(ValueError, "erase without anything named"):
                self.store.erase(space)

    def test_a_space_made_again_is_another(self) -> None:
        """Content of a deleted space comes back, or its successor takes an offset of it for its own."""
        for space in self.spaces():
            self.put(space, "s", numbered(1, 5))
            self.store.maintain()
            offset = self.store.end_offset(space)
            self.store.delete_space(space)
            for store in (self.store, self.stranger()):
                hold(space not in store.get_spaces(), "a deleted space is listed")
                same(list(store.consume_space(space)), [], "the entries of a deleted space")
            self.put(space, "s", [b"new"])
            for store in (self.store, self.stranger()):
                same(self.payloads(space, "s", store), [b"new"], "the entries of the new space")
                with refusing(InvalidOffset, "an offset of the space that was deleted"):
                    list(store.consume_space(space, offset=offset))
            self.store.delete_space("never there")

    def test_a_follower_goes_on_while_it_is_trimmed(self) -> None:
        """A follower gets an entry twice, or stops, where what it has read is trimmed behind it."""
        other = self.stranger()
        following = self.store.follow_segment("a", "s", timeout=0.2, gaps="yield")
        got: list[int] = []
        gone = 0
        for number in count(1):
            if number > 12:
                break
            self.put("a", "s", [b"%d" % number], other)
            one = next(following)
            if isinstance(one, Gap):
                gone += one.last_sequence - one.first_sequence + 1
                one = next(following)
            got.append(one.sequence)
            if number % 3 == 0:
                other.trim("a", "s", keep_entries=1)
                other.maintain()
        same((got, gone), (list(range(1, 13)), 0), "what a follower got")

    def test_size_counts_what_is_kept(self) -> None:
        """The size of a space counts what was removed, or not what is there."""
        for number in range(10):
            self.put("a", f"s{number % 2}", [b"x" * 100])
        self.store.maintain()
        self.store.trim("a", "s0", keep_entries=2)
        found = self.store.size("a")
        same((found.entries, found.segments, found.bytes), (7, 2, 700), "after one segment was trimmed")
        hold(found.stored_bytes > 0 and {tier.name for tier in found.tiers} == {"log", "index", "archive"}, "its tiers")
        self.store.trim("a", keep_entries=3)
        found = self.store.size("a")
        same((found.entries, found.bytes), (3, 300), "after the space was trimmed")
