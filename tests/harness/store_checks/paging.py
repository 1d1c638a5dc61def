"""Offsets: their entries, their form, and refusals."""

from __future__ import annotations

import json
from itertools import islice, pairwise
from typing import Any
from uuid import uuid4

from streamkit.errors import InvalidOffset
from streamkit.lexkey import LexKey
from streamkit.model import Entry, Record
from streamkit.testing.backend_checks.subject import hold, same

from .subject import StoreSubject, refusing

__all__ = ["Paging"]


class Paging(StoreSubject):
    def fill_pages(self, space: str, batches: int = 12) -> list[Entry]:
        for number in range(batches):
            with self.store.transaction(space) as trx:
                trx.produce("{t}a", [Record(b"%d" % number)] * 2)
                trx.produce("{t}b", [Record(b"%d" % number)])
            self.put(space, f"s{number % 5}", [b"%d" % number])
        return list(self.store.consume_space(space))

    def test_pages_hold_every_entry_once(self) -> None:
        """Reading in pages by offset lost an entry, doubled one, or changed the order."""
        for space in self.spaces():
            entries = self.fill_pages(space)
            for size in (2, 7, len(entries)):
                store, found, offset = self.stranger(), [], None
                while page := list(store.consume_space(space, offset=offset, limit=size)):
                    hold(len(page) <= size, f"a page of {len(page)} entries with limit={size}")
                    found += page
                    offset = page[-1].space_offset
                same(found, entries, f"all pages of {size}")

    def test_pages_hold_what_is_written_meanwhile(self) -> None:
        """An entry that was written while a reader held an offset was never read after it, or the order changed."""
        for space in self.spaces():
            found: list[Entry] = []
            offsets: list[LexKey] = []
            reader, other = self.stranger(), self.stranger()
            for number in range(24):
                self.put(space, f"s{number % 7}", [b"%d" % number, b"-"], other if number % 3 else self.store)
                page = list(reader.consume_space(space, offset=offsets[-1] if offsets else None, limit=1 + number % 4))
                found += page
                offsets += [entry.space_offset for entry in page]
            found += reader.consume_space(space, offset=offsets[-1])
            entries = list(self.store.consume_space(space))
            same(len(found), len(entries), "the number of entries in all pages")
            same({(e.segment, e.sequence) for e in found}, {(e.segment, e.sequence) for e in entries}, "the entries")
            last: dict[int, int] = {}
            for entry in found:
                partition = entry.origin.partition
                hold(entry.trx.number >= last.get(partition, 0), "pages break the order of a partition")
                last[partition] = entry.trx.number
            hold(
                all(earlier < later for earlier, later in pairwise(offsets)),
                "offsets do not grow from page to page",
            )

    def test_an_offset_is_good_in_every_form(self) -> None:
        """An offset as LexKey, bytes, hex text or through JSON led elsewhere, or in another process."""
        for space in self.spaces():
            entries = self.fill_pages(space, 4)
            offset = entries[5].space_offset
            hold(isinstance(offset, LexKey), f"space_offset is a {type(offset).__name__}")
            text = json.loads(json.dumps({"offset": offset.hex()}))["offset"]
            same(LexKey.from_hex(text), offset, "the offset through JSON")
            forms: list[LexKey | bytes | str] = [offset, bytes(offset), text, text.upper(), LexKey.from_hex(text)]
            for store in (self.store, self.stranger()):
                for form in forms:
                    same(list(store.consume_space(space, offset=form)), entries[6:], f"after the offset as {form!r}")
                    same(list(store.consume({space: form})), entries[6:], f"consume after the offset as {form!r}")
                    followed = store.follow_space(space, offset=form, timeout=0)
                    same(list(followed), entries[6:], f"following after the offset as {form!r}")

    def test_any_readers_offset_will_do(self) -> None:
        """The offset of an entry that was read in another way led to other entries than those after it."""
        for space in self.spaces():
            entries = self.fill_pages(space, 6)
            for at in (0, 7, len(entries) - 1):
                entry = entries[at]
                others = [
                    next(self.store.consume_segment(space, entry.segment, min_sequence=entry.sequence)),
                    next(islice(self.store.consume({space: None}), at, None)),
                    next(islice(self.store.follow_space(space, timeout=0), at, None)),
                ]
                if self.store.peek(space, entry.segment).sequence == entry.sequence:
                    others.append(self.store.peek(space, entry.segment))
                for other in others:
                    same(other, entry, "the entry, as another reader has it")
                    rest = list(self.store.consume_space(space, offset=other.space_offset))
                    same(rest, entries[at + 1 :], "what is after the offset that another reader has")

    def test_damaged_offsets_are_refused(self) -> None:
        """A damaged offset was taken, or ended in another error than InvalidOffset."""
        hold(issubclass(InvalidOffset, ValueError), "InvalidOffset is no ValueError")
        for space in self.spaces():
            offset = bytes(self.fill_pages(space, 2)[3].space_offset)
            for at in range(len(offset)):
                for bit in range(0, 8, 3):
                    broken = offset[:at] + bytes([offset[at] ^ 1 << bit]) + offset[at + 1 :]
                    self.check_offset(space, broken, f"the offset with bit {bit} of byte {at} flipped")
            for at in range(len(offset)):
                self.check_offset(space, offset[:at], f"the offset cut to {at} bytes")
                self.check_offset(space, offset[at + 1 :], f"the offset without its first {at + 1} bytes")
            for broken_text in (offset + b"\0", b"\0" + offset, offset + offset, offset.hex()[1:], "xyz", "", b""):
                self.check_offset(space, broken_text, f"the offset {broken_text!r}")

    def test_foreign_offsets_are_refused(self) -> None:
        """An offset of another space, or another kind of key, was taken for one of this space."""
        entries = {}
        for space in ("a", "ab", "four"):
            if space == "four":
                self.store.create_space(space, partitions=4)
            entries[space] = self.fill_pages(space, 2)
        for space in entries:
            for other in entries:
                if other != space:
                    self.check_offset(space, entries[other][2].space_offset, f"an offset of {other!r} for {space!r}")
            self.check_offset(space, entries[space][2].segment_offset, "a segment_offset")
        self.check_offset("a", LexKey.encode("a"), "a key of another kind")

    def test_offsets_of_another_incarnation_are_refused(self) -> None:
        """An offset of another store, or of a space that was deleted and made again, was taken."""
        other_id = uuid4()
        other = self.client.store(other_id)
        try:
            for partitions in self.partitions:
                space = f"{partitions} partitions"
                for store in (self.store, other):
                    store.create_space(space, partitions=partitions)
                    for at in range(8):
                        self.put(space, f"s{at}", [b"%d" % at], store)
                theirs = list(other.consume_space(space))
                for offset in (theirs[0].space_offset, theirs[-1].space_offset, other.end_offset(space)):
                    self.check_offset(space, offset, "an offset of another store")
                segments = other.consume_segment(space, "s3")
                self.check_offset(space, next(segments).space_offset, "an offset of another store's segment")
        finally:
            self.client.delete_store(other_id)
        for partitions in self.partitions:
            space = f"{partitions} partitions"
            offset = self.store.end_offset(space)
            self.client.delete_store(self.store_id)
            del self.store
            self.check_offset(space, offset, "an offset of a space that was deleted")
            self.store.create_space(space, partitions=partitions)
            self.check_offset(space, offset, "an offset of an empty space that was made again")
            for at in range(9):
                self.put(space, f"s{at}", [b"%d" % at] * 2)
            self.check_offset(space, offset, "an offset of a space that was made again")
            same(len(list(self.store.consume_space(space))), 18, "the entries of the space that was made again")
            for other_partitions in self.partitions:
                self.store.create_space(f"{other_partitions} partitions", partitions=other_partitions)

    def test_the_end_is_after_what_was_committed_and_before_what_comes(self) -> None:
        """A read after `end_offset` gave an earlier entry or missed a later one; or it is no offset."""
        start = self.store.end_offset("unknown")
        same(list(self.store.consume_space("unknown", offset=start)), [], "what follows on the end of an unknown space")
        for space in self.spaces():
            beginning = self.store.end_offset(space)
            hold(isinstance(beginning, LexKey), f"end_offset is a {type(beginning).__name__}")
            entries = self.fill_pages(space, 3)
            for store in (self.store, self.stranger()):
                same(list(store.consume_space(space, offset=beginning)), entries, "after the end of an empty space")
                end = store.end_offset(space)
                same(end, entries[-1].space_offset, "the end, and the offset of the last entry")
                same(list(store.consume_space(space, offset=end)), [], "what follows on the end")
            offset = self.stranger().end_offset(space)
            self.put(space, "later", [b"1", b"2"])
            self.put(space, "even later", [b"3"])
            later = list(self.store.consume_space(space))[len(entries) :]
            same(len(later), 3, "the number of later entries")
            same(list(self.stranger().consume_space(space, offset=offset)), later, "what follows on the earlier end")
            self.stranger().maintain(space)
            fresh = self.stranger()
            end = fresh.end_offset(space)
            same(list(fresh.consume_space(space, offset=end)), [], "what follows on the end after maintain()")
            same(list(fresh.consume_space(space, offset=offset)), later, "what follows on the earlier end by then")
        self.put("unknown", "s", [b"1"])
        same(
            len(list(self.store.consume_space("unknown", offset=start))), 1, "what follows on the end before the first"
        )

    def test_offsets_of_another_type_are_refused(self) -> None:
        """An offset that is neither bytes nor text was taken, or ended in another error than TypeError."""
        self.fill_pages("space", 2)
        for wrong in (5, 1.5, True, ["x"], bytearray(b"x"), object()):
            self.check_offset("space", wrong, f"the offset {wrong!r}", TypeError)

    def check_offset(self, space: str, offset: Any, what: str, error: type[Exception] = InvalidOffset) -> None:
        """Check that every reader refuses the offset."""
        with refusing(error, f"consume_space with {what}"):
            list(self.store.consume_space(space, offset=offset))
        with refusing(error, f"consume with {what}"):
            list(self.store.consume({space: offset}))
        with refusing(error, f"follow_space with {what}"):
            list(self.store.follow_space(space, offset=offset, timeout=0))
