"""get and read: order, freshness, ranges, keys of every kind, values of every size."""

from __future__ import annotations

import random

from ...backend import ABSENT, NEXT, Range
from .subject import Subject, hold, same

__all__ = ["ODD_KEYS", "Reading"]

P = b"reading"

NAMES = "a ab abc a/b 1 10 100 é 🎉 order-4 order-42 order-4/ a.b a..b . .. A # ? % %2F ' \" \\ + & = ~ :"
ODD_KEYS = sorted(
    {
        *(bytes([byte]) for byte in range(256)),
        *(b"k" + bytes([byte]) for byte in range(256)),
        *(b"k" + bytes([byte]) + b"z" for byte in (0, 1, 0x2F, 0x5C, 0x7F, 0x80, 0xC3, 0xFE, 0xFF)),
        *(name.encode() for name in NAMES.split()),
        *(b"order-4" + tail for tail in (b"\x00", b"\x00\x00", b"\x00a", b"\x01", b"2\x00a", b"\xff", b"\xff\xff")),
        *(b"\x00" * count for count in range(1, 5)),
        *(b"\xff" * count for count in range(1, 5)),
        b"a b",
        b" a",
        b"a ",
        b"\r\n",
        b"\xc3\x28",
        b"\xed\xa0\x80",
    }
)


class Reading(Subject):
    def test_get_answers_in_the_order_of_the_keys(self) -> None:
        """get gave the values in another order than the keys were asked for, or left the missing ones out."""
        for key in (b"a", b"b"):
            self.backend.put(P, key, key.upper())
        self.backend.put(P, b"c", b"C", NEXT)
        asked = [b"c", b"missing", b"a", b"b", b"", b"a", b"zz"]
        for keys in (asked, asked[::-1], [b"missing"], []):
            found = [None if value is None else value.data for value in self.backend.get(P, keys)]
            wanted = [{b"a": b"A", b"b": b"B", b"c": b"C"}.get(key) for key in keys]
            same(found, wanted, f"the values of {keys}")

    def test_get_takes_many_keys(self) -> None:
        """A get of 300 keys did not give 300 answers in order."""
        keys = [b"%05d" % number for number in range(300)]
        self.fill(P, keys[::3])
        found = self.backend.get(P, keys)
        same([value is not None for value in found], [not at % 3 for at in range(300)], "the existing rows")
        reads = self.backend.read(P, [Range(key, 0, 5) for key in keys])
        same(reads, [None if at % 3 else b"-" for at in range(300)], "the same with read")

    def test_an_acknowledged_write_is_seen_by_everyone(self) -> None:
        """A read that started after a write was acknowledged did not see it: a stale read."""
        other = self.stranger()
        for number in range(20):
            old, data = b"%d" % (number - 1), b"%d" % number
            same(self.data(P, b"k", other), old if number else None, "the row before the write")
            self.backend.put(P, b"k", data)
            same(self.data(P, b"k", other), data, "the row that another client gets")
            same(other.read(P, [Range(b"k", 0, 9)]), [data], "the row that another client reads")
            same([row.data for row in other.scan(P, b"k", b"l")], [data], "the row that another client scans")
            self.backend.put(P, b"log %04d" % number, data, NEXT)
            same(self.data(P, b"log %04d" % number, other), data, "a row of a log that another client gets")
            same(len([*other.scan(P, b"log", b"loh")]), number + 1, "rows of a log that another client scans")
        self.backend.delete(P, [b"k"])
        same(other.get(P, [b"k"]), [None], "a deleted row that another client gets")

    def test_an_absent_row_is_not_remembered_as_absent(self) -> None:
        """A row that was missing once stayed missing after another client made it."""
        other = self.stranger()
        for number in range(10):
            key = b"%03d" % number
            same(other.get(P, [key]), [None], "a row that is not there yet")
            self.backend.put(P, key, b"new", NEXT)
            same(self.data(P, key, other), b"new", "the row after it was made")

    def test_ranges_are_cut_like_bytes(self) -> None:
        """read gave other bytes than the same slice of the value."""
        value = bytes(range(256)) * 4
        self.backend.put(P, b"put", value)
        self.backend.put(P, b"x", value, NEXT)
        self.backend.put(P, b"empty", b"")
        parts = [(0, 1), (0, 1024), (1, 1), (1023, 1), (255, 2), (500, 524), (500, 525), (0, 9999), (0, 0)]
        parts += [(1023, 5), (1024, 1), (1024, 0), (1025, 1), (9999, 9), (700, 0)]
        for key in (b"put", b"x"):
            found = self.backend.read(P, [Range(key, *part) for part in parts])
            same(found, [value[start : start + length] for start, length in parts], f"ranges of {key!r}")
            for start, length in parts:
                alone = self.backend.read(P, [Range(key, start, length)])
                same(alone, [value[start : start + length]], f"{length} bytes of {key!r} from {start}")
        mixed = [Range(b"none", 0, 9), Range(b"empty", 0, 9), Range(b"put", 1, 2), Range(b"empty", 5, 9)]
        same(self.backend.read(P, mixed), [None, b"", b"\x01\x02", b""], "ranges of several rows")
        same(self.backend.read(P, []), [], "no ranges")

    def test_an_empty_value_is_a_value(self) -> None:
        """A row with an empty value was taken for a missing one, or the other way round."""
        self.backend.put(P, b"a", b"")
        self.backend.put(P, b"b", b"", NEXT)
        same(self.data(P, b"a"), b"", "an empty value")
        same(self.data(P, b"b"), b"", "an empty value of a log")
        same(self.content(P), {b"a": b"", b"b": b""}, "the partition")

    def test_every_byte_is_fit_for_a_key(self) -> None:
        """Keys of odd bytes were refused, confused with each other, or out of order."""
        for partition in (P, b"\x00\xff/\\#?%'"):
            self.put_all(partition, {key: b"=" + key for key in ODD_KEYS[::2]})
            self.put_all(partition, {key: b"=" + key for key in ODD_KEYS[1::2]})
            rows = list(self.backend.scan(partition, b"", b"\xff" * 9))
            same([row.key for row in rows], ODD_KEYS, "the keys in order")
            same([row.data for row in rows], [b"=" + key for key in ODD_KEYS], "their values")
            found = [value and value.data for value in self.backend.get(partition, ODD_KEYS)]
            same(found, [b"=" + key for key in ODD_KEYS], "their values by get")

    def test_a_log_takes_keys_of_every_byte(self) -> None:
        """Keys of odd bytes, put with NEXT, were refused, confused with each other, or out of order."""
        keys = ODD_KEYS[::7]
        for key in keys:
            self.backend.put(P, key, b"=" + key, NEXT)
        same(self.content(P), {key: b"=" + key for key in keys}, "the partition")
        same(self.keys(P), keys, "the keys in order")

    def test_keys_and_partitions_of_300_bytes(self) -> None:
        """The longest key in the longest partition was refused, cut short, or confused with its neighbour."""
        for byte in (b"\x00", b"a", b"\xff", "é".encode()[:1]):
            partition = byte * 299 + b"p"
            keys = sorted(
                [byte * 299 + b"1", byte * 299 + b"2", byte * 300, byte * 299, byte * 150, b"log" + byte * 297]
            )
            self.fill(partition, keys[:-1])
            self.backend.put(partition, keys[-1], b"-", NEXT)
            same(self.keys(partition), keys, f"300-byte keys of {byte!r}")
            hold(None not in self.backend.get(partition, keys), f"a 300-byte key of {byte!r} is not found")
            self.backend.delete(partition, [keys[0]])
            same(self.keys(partition), keys[1:], "the keys after deleting one")

    def test_values_of_every_byte(self) -> None:
        """A value came back with other bytes than were written."""
        values = [bytes(range(256)), b"\x00" * 100, b"\xff" * 100, b"\r\n\n\r", "é🎉".encode(), random.randbytes(999)]
        for number, value in enumerate(values):
            self.backend.put(P, b"p%d" % number, value)
            self.backend.put(P, b"q%d" % number, value, NEXT)
            same(self.data(P, b"p%d" % number), value, "a value that was put")
            same(self.data(P, b"q%d" % number), value, "a value that was put with NEXT")

    def test_values_of_every_size(self) -> None:
        """A value came back different, or its row was refused, because of its size or of the size of the one before."""
        edges = [1 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 704 << 10, 1 << 20]
        sizes = [size + more for size in edges for more in (-1, 0, 1)]
        values = {b"%07d" % size: random.randbytes(size) for size in sizes}
        self.put_all(P, values)
        for key, value in values.items():
            hold(self.data(P, key) == value, f"a value of {len(value)} bytes came back different")
        hold(self.content(P) == values, "the scanned values")
        middle = [Range(key, len(value) // 2, 70_000) for key, value in values.items()]
        wanted = [value[len(value) // 2 :][:70_000] for value in values.values()]
        hold(self.backend.read(P, middle) == wanted, "ranges of the values")
        for size in (1 << 20, 10, 3 << 20, 100 << 10, 0, 2 << 20):
            value = random.randbytes(size)
            self.backend.put(P, b"changing", value)
            hold(self.data(P, b"changing") == value, f"{size} bytes came back different from a row that was replaced")

    def test_a_row_may_be_large(self) -> None:
        """A value of several MiB was refused or came back different."""
        size = 12 << 20
        value = random.randbytes(size)
        self.backend.put(P, b"1", b"small", NEXT)
        self.backend.put(P, b"2", value, NEXT)
        self.backend.put(P, b"3", b"small", NEXT)
        self.backend.put(P, b"4", value, ABSENT)
        for backend in (self.backend, self.stranger()):
            for key in (b"2", b"4"):
                hold(self.data(P, key, backend) == value, f"a value of {size} bytes came back different")
                parts = [(0, 10), (size - 10, 99), (size // 2, 70_000), (4 << 20, 1), (12345, 1 << 20)]
                found = backend.read(P, [Range(key, *part) for part in parts])
                hold(found == [value[a : a + n] for a, n in parts], "a range of it came back different")
            rows = list(backend.scan(P, b"", b"\xff"))
            same([row.key for row in rows], [b"1", b"2", b"3", b"4"], "the keys")
            hold(rows[1].data == rows[3].data == value, f"a value of {size} bytes was scanned differently")
        self.backend.delete(P, [b"2", b"4"])
        same(self.content(P), {b"1": b"small", b"3": b"small"}, "the partition after deleting them")

    def test_a_range_may_name_the_etag(self) -> None:
        """A range with the row's etag was not read, or one with an old etag gave bytes of neither value."""
        for size in (100, 100 << 10, 3 << 20):
            old, new = random.randbytes(size), random.randbytes(size)
            where = (size // 2, 999)
            middle = slice(size // 2, size // 2 + 999)
            key = b"k%d" % size
            written = self.backend.put(P, key, old, ABSENT)
            (value,) = self.backend.get(P, [key])
            (row,) = self.backend.scan(P, key, key + b"\x00")
            assert value is not None
            for etag in (written, value.etag, row.etag):
                for backend in (self.backend, self.stranger()):
                    found = backend.read(P, [Range(key, *where, etag), Range(key, 0, 10), Range(key, size, 5, etag)])
                    hold(found == [old[middle], old[:10], b""], f"{size} bytes were read differently with the etag")
            self.stranger().put(P, key, new, written)
            (found_now,) = self.backend.read(P, [Range(key, *where, written)])
            hold(found_now in (None, new[middle]), "a range with an old etag is neither missing nor of the new value")
            self.backend.delete(P, [key])
            same(self.backend.read(P, [Range(key, *where, written)]), [None], "a range of a row that was deleted")
