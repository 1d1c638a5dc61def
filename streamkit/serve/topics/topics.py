"""Topics of one store: their configurations, records and states. Everything is in the store; this holds caches."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec

from ...decoders import json_decoder
from ...errors import LeaseNotAcquired, SequenceMismatch, TransactionIdMismatch
from ...gaps import Gap
from ...groups import Group
from ...model import Entry, Record
from ...names import internal_name
from ...places import removal_mark
from ...removing.erasures import complete_erasures
from ...store import Store
from .config import Stored, TopicConfig, check_topic_name
from .errors import Refused

__all__ = ["NODE", "SPACE", "TAG", "Topic", "Topics", "Written", "record_out"]

SPACE = "topics"
"""The space of all records."""
_CONFIGS = internal_name("topics")
TAG, NODE, META = "topics.tag", "topics.node", "topics.meta"
"""Metadata of a record."""
_TRIES = 100
_SLACK = 1_000
"""A topic with a larger cap is trimmed when it is over it by a hundredth: a trim is a transaction."""
_GROUP = "queue"
_stored = json_decoder(Stored)
_raw = json_decoder(msgspec.Raw)


class Topic(NamedTuple):
    """A topic that exists."""

    name: str
    stored: Stored
    sequence: int
    """The sequence of the entry that holds the topic's configuration."""

    @property
    def config(self) -> TopicConfig:
        return self.stored.config

    @property
    def segment(self) -> str:
        return self.stored.segment(self.name)

    @property
    def is_queue(self) -> bool:
        return self.config.type == "queue"


class Written(NamedTuple):
    """The result of an append."""

    first: int
    last: int
    deduped: bool


class Extent(NamedTuple):
    """The live records of a topic."""

    head: int
    earliest: int
    records: int
    bytes: int
    last_write: int | None


class _Counted:
    """The live records that were counted up to a sequence, of a segment that nothing was removed from since."""

    def __init__(self, mark: Any) -> None:
        self.mark = mark
        self.upto = self.count = self.bytes = self.earliest = 0


def size_of(entry: Entry) -> int:
    """Bytes of a record: its data and meta."""
    return len(entry.payload) + len(entry.metadata.get(META, ""))


def record_out(entry: Entry, *, tags: bool, meta: bool, data: bool = True) -> dict[str, Any]:
    """A record as readers get it."""
    found: dict[str, Any] = {"$seq": entry.sequence, "$ts": entry.timestamp}
    if (node := entry.metadata.get(NODE)) is not None:
        found["$node"] = node
    if tags and (tag := entry.metadata.get(TAG)) is not None:
        found["$tag"] = tag
    if data:
        found["data"] = _data_of(entry)
    if meta and (text := entry.metadata.get(META)) is not None:
        found["meta"] = msgspec.Raw(text.encode())
    return found


def _data_of(entry: Entry) -> Any:
    """The payload. Another interface may have written a payload that is no JSON: it is a string then."""
    try:
        _raw.decode(entry.payload)
        # White space without line ends: it is sent as a line of an event stream too.
        return msgspec.Raw(entry.payload.replace(b"\n", b" ").replace(b"\r", b" "))
    except msgspec.DecodeError:
        return entry.payload.decode(errors="replace")


class Topics:
    """The topics of a store. Used by many threads; each value of a cache is replaced as a whole."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.configs: dict[str, TopicConfig] = {}
        """The configurations of topics as they were last seen."""
        self.read_at: dict[str, int] = {}
        """The time at which this process last read each topic, in ms."""
        self.is_erasing = True
        """True if the storage may hold records that were deleted."""
        self._counted: dict[str, _Counted] = {}
        self._buried: dict[str, tuple[set[str], int]] = {}
        self._trimmed: dict[str, int] = {}

    # -- configurations -----------------------------------------------------------------------------------------

    def _peek(self, name: str) -> tuple[Stored | None, int]:
        entry = self.store.peek(_CONFIGS, name)
        return (_stored.decode(entry.payload) if entry.sequence else None), entry.sequence

    def find(self, name: str) -> Topic | None:
        """The topic if it exists."""
        stored, sequence = self._peek(name)
        if stored is None or stored.deleted:
            self.configs.pop(name, None)
            return None
        self.configs[name] = stored.config
        return Topic(name, stored, sequence)

    def get(self, name: str) -> Topic:
        """The topic. Refused if it does not exist."""
        check_topic_name(name)
        found = self.find(name)
        if found is None:
            raise Refused("topic_not_found", f"topic {name!r} does not exist", topic=name)
        return found

    def queue(self, name: str) -> Topic:
        """The topic, which must be a queue."""
        found = self.get(name)
        if not found.is_queue:
            raise Refused("not_a_queue", f"topic {name!r} is a log, not a queue", topic=name)
        return found

    def put(self, name: str, config: TopicConfig) -> tuple[Topic, bool]:
        """Make a topic, or replace its configuration; whether it is new."""
        for _ in range(_TRIES):
            stored, sequence = self._peek(name)
            is_new = stored is None or stored.deleted
            if stored is not None and not is_new:
                if stored.config.type != config.type:
                    raise Refused(
                        "topic_exists_incompatible",
                        f"topic {name!r} is a {stored.config.type}, which cannot be changed",
                        topic=name,
                    )
                if stored.config == config:
                    return Topic(name, stored, sequence), False
            if stored is not None and stored.deleted:
                # Its deletion may have been stopped, and nothing looks for its remains later.
                self._clear(Topic(name, stored, sequence))
            generation = 1 if stored is None else stored.generation + stored.deleted
            created = int(time.time() * 1000) if stored is None or is_new else stored.created
            made = Stored(generation=generation, created=created, config=config)
            if (written := self._write(name, made, sequence)) is not None:
                topic = Topic(name, made, written)
                self.configs[name] = config
                if topic.is_queue:
                    self._configure(topic)
                return topic, is_new
        raise Refused("topic_exists_incompatible", "others change this topic all the time; try again", topic=name)

    def _write(self, name: str, stored: Stored, expected: int) -> int | None:
        record = Record(msgspec.json.encode(stored))
        try:
            return self.store.produce(_CONFIGS, name, [record], expected_sequence=expected).last_sequence
        except SequenceMismatch:
            return None

    def names(self, prefix: str, after: str | None) -> Iterator[str]:
        """The names of topics, in order."""
        for status in self.store.segment_statuses(_CONFIGS, prefix=prefix, after=after):
            if self.find(status.segment) is not None:
                yield status.segment

    def delete(self, name: str, if_empty: bool) -> bool:
        """Remove a topic and its records. True if it existed.

        A topic that was deleted before loses the remains of a stopped deletion, and of writes beside it.
        """
        for _ in range(_TRIES):
            stored, sequence = self._peek(name)
            if stored is None:
                return False
            topic = Topic(name, stored, sequence)
            if stored.deleted:
                self._clear(topic)
                return False
            if if_empty and self.extent(topic).records:
                raise Refused("topic_not_empty", f"topic {name!r} has records", topic=name)
            gone = msgspec.structs.replace(stored, deleted=True)
            if self._write(name, gone, sequence) is not None:
                self.configs.pop(name, None)
                self._clear(topic)
                return True
        return False

    def _clear(self, topic: Topic) -> None:
        """Remove everything of a topic that is deleted. Nothing is written if nothing is left."""
        store, segment = self.store, topic.segment
        if topic.is_queue:
            if (group := store.find_group(SPACE, self._group_name(topic))) is not None:
                group.delete()
            store.delete_segment(SPACE, f"{segment}/dead")
        left = store.erase(SPACE, segment, dry_run=True)
        if left.entries or left.hidden:
            store.delete_segment(SPACE, segment)
            self._erase(segment)  # a deletion alone leaves the bytes until upkeep

    # -- records ------------------------------------------------------------------------------------------------

    def head(self, topic: Topic) -> int:
        """The last sequence; 0 if there is none."""
        return self.store.segment_status(SPACE, topic.segment).last_sequence

    def append(self, topic: Topic, records: Sequence[Record], key: str | None) -> Written:
        """Append records, once for each `key`. Refused if a full topic rejects them."""
        config = topic.config
        digest = None
        if key is not None and config.idempotency_window_ms:
            digest = hashlib.blake2b(f"{topic.segment}\0{key}".encode(), digest_size=24).hexdigest()
        rejects = config.discard == "reject" and (config.cap_records or config.cap_bytes)
        for _ in range(_TRIES):
            expected = None
            if rejects and (digest is None or self.store.lookup(SPACE, digest, topic.segment) is None):
                expected = self.room_for(topic, records)
            try:
                with self.store.transaction(SPACE, digest) as transaction:
                    transaction.produce(topic.segment, records, expected_sequence=expected)
            except SequenceMismatch:
                continue
            except TransactionIdMismatch as error:
                raise Refused(
                    "idempotency_key_reused",
                    "the idempotency_key was used for other records; take another key",
                    topic=topic.name,
                ) from error
            last = transaction.statuses[topic.segment].last_sequence
            if not rejects:
                self.evict(topic)
            return Written(last - len(records) + 1, last, transaction.replayed)
        raise Refused("topic_full", "others fill this topic all the time; try again", topic=topic.name)

    def room_for(self, topic: Topic, records: Sequence[Record]) -> int:
        """The sequence after which the records fit. Refused if they do not."""
        self.evict(topic)
        extent, config = self.extent(topic), topic.config
        size = sum(len(record.payload) + len((record.metadata or {}).get(META, "")) for record in records)
        if (config.cap_records and extent.records + len(records) > config.cap_records) or (
            config.cap_bytes and extent.bytes + size > config.cap_bytes
        ):
            raise Refused("topic_full", f"topic {topic.name!r} is full, and nothing was appended", topic=topic.name)
        return extent.head

    def evict(self, topic: Topic) -> None:
        """Trim the records beyond the ttl and the caps of a topic."""
        config, segment, store = topic.config, topic.segment, self.store
        status = store.segment_status(SPACE, segment)
        if not status.last_sequence or status.first_sequence > status.last_sequence:
            return
        if config.ttl_ms and status.first_timestamp < time.time() * 1000 - config.ttl_ms:
            store.trim(SPACE, segment, max_age=config.ttl_ms / 1000)
        if config.discard == "reject" or topic.is_queue:
            return
        if config.cap_records:
            over = status.last_sequence - status.first_sequence + 1 - config.cap_records
            if over > (0 if config.cap_records <= _SLACK else config.cap_records // 100):
                store.trim(SPACE, segment, keep_entries=config.cap_records)
        if config.cap_bytes and self.extent(topic).bytes > config.cap_bytes:
            store.trim(SPACE, segment, keep_bytes=config.cap_bytes)

    def read(self, topic: Topic, after: int) -> Iterator[Entry | Gap]:
        """The records after a sequence, and the gaps between them. For a queue: the jobs that are not done."""
        self.evict(topic)
        found = self.store.consume_segment(SPACE, topic.segment, min_sequence=after + 1, gaps="yield")
        if not topic.is_queue:
            return iter(found)
        unfinished, cursor = self.group(topic).unfinished(topic.segment)
        left = set(unfinished)
        return (one for one in found if isinstance(one, Entry) and (one.sequence >= cursor or one.sequence in left))

    def extent(self, topic: Topic) -> Extent:
        """The number, range and size of the topic's records."""
        status = self.store.segment_status(SPACE, topic.segment)
        head, written = status.last_sequence, status.last_timestamp or None
        if topic.is_queue:
            live = [one for one in self.read(topic, 0) if isinstance(one, Entry)]
            earliest = live[0].sequence if live else head + 1
            return Extent(head, earliest, len(live), sum(map(size_of, live)), written)
        mark = (self._removed(), status.first_sequence)
        counted = self._counted.get(topic.segment)
        if counted is None or counted.mark != mark:
            counted = _Counted(mark)
        if counted.upto < head:
            next_ = _Counted(mark)
            next_.count, next_.bytes, next_.earliest = counted.count, counted.bytes, counted.earliest
            next_.upto = counted.upto
            entries = self.store.consume_segment(
                SPACE, topic.segment, min_sequence=counted.upto + 1, max_sequence=head, gaps="skip"
            )
            for entry in entries:
                next_.count += 1
                next_.bytes += size_of(entry)
                next_.earliest = next_.earliest or entry.sequence
            next_.upto = head
            self._counted[topic.segment] = counted = next_
        return Extent(head, counted.earliest or head + 1, counted.count, counted.bytes, written)

    def _removed(self) -> Any:
        """A value that changes when something is removed from the space."""
        return removal_mark(self.store, SPACE)

    def remove(self, topic: Topic, sequences: Sequence[int]) -> None:
        """Delete records for ever. No reader gets them any more, and there are no tombstones for them."""
        for first in range(0, len(sequences), 100_000):
            self._erase(topic.segment, sequences[first : first + 100_000])

    def _erase(self, segment: str, sequences: Sequence[int] | None = None) -> None:
        try:
            self.store.erase(SPACE, segment, sequences=sequences)
        except LeaseNotAcquired:
            self.is_erasing = True  # no reader gets them any more, and the server removes the bytes later

    def complete_erasures(self) -> bool:
        """Remove erased records from storage, also those of processes that were stopped. False while another process
        archives the records, or erases from them."""
        self.is_erasing = False  # a request may begin another one meanwhile
        if not complete_erasures(self.store, SPACE):
            self.is_erasing = True
        return not self.is_erasing

    # -- queues -------------------------------------------------------------------------------------------------

    def group(self, topic: Topic) -> Group:
        """The group that hands out the jobs of a queue."""
        found = self.store.find_group(SPACE, self._group_name(topic))
        return self._configure(topic) if found is None else found

    def _group_name(self, topic: Topic) -> str:
        return hashlib.blake2b(f"{_GROUP}\0{topic.segment}".encode(), digest_size=24).hexdigest()

    def _configure(self, topic: Topic) -> Group:
        config = topic.config
        limited = config.max_deliveries if config.dead_letter is not None and config.max_deliveries else 1_000
        settings: Mapping[str, Any] = {
            "ack_timeout": min(config.lease_ms / 1000, 43_200.0),
            "max_deliveries": min(limited, 1_000),
        }
        group = self.store.group(SPACE, self._group_name(topic), segments=[topic.segment], lanes=1, retry_delay=0)
        group.configure(**settings, max_pending=100_000)
        return group

    def buried(self, topic: Topic) -> tuple[set[str], int]:
        """The dead letters that were copied, by their ids, and the last sequence of the segment that says so."""
        ids, last = self._buried.get(topic.segment, (set(), 0))
        for entry in self.store.consume_segment(SPACE, f"{topic.segment}/dead", min_sequence=last + 1):
            ids, last = ids | set(json_decoder(list[str]).decode(entry.payload)), entry.sequence
        self._buried[topic.segment] = ids, last
        return ids, last

    def bury(self, topic: Topic, dest: Topic, copies: Mapping[str, Record], last: int) -> bool:
        """Append copies of dead letters, by their ids, to a topic. False if another process was faster."""
        if dest.config.discard == "reject":
            self.room_for(dest, list(copies.values()))
        note = Record(msgspec.json.encode(list(copies)))
        try:
            with self.store.transaction(SPACE) as transaction:
                transaction.produce(f"{topic.segment}/dead", [note], expected_sequence=last)
                transaction.produce(dest.segment, list(copies.values()))
        except SequenceMismatch:
            return False
        self.evict(dest)
        return True

    def trim_done(self, topic: Topic, group: Group) -> None:
        """Trim the jobs at the front of a queue that are done with, some at a time."""
        unfinished, cursor = group.unfinished(topic.segment)
        letters = group.dead_letters(1)
        first = min([cursor, *unfinished[:1], *(letter.entry.sequence for letter in letters)])
        if first - self._trimmed.get(topic.segment, 1) >= _SLACK:
            self._trimmed[topic.segment] = first
            self.store.trim(SPACE, topic.segment, before=first)
