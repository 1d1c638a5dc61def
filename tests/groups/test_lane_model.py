"""The state machine of a lane against a model that is too slow and too simple to be wrong."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import msgspec
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from streamkit.groups.decide import behind, claim, give_up, lone_is_due
from streamkit.groups.events import (
    Acked,
    Added,
    Died,
    Doubted,
    EntryBlock,
    Extended,
    LaneBatch,
    Redriven,
    Released,
    Reset,
    StreamCursor,
    Vanished,
)
from streamkit.groups.lane import LaneState
from streamkit.groups.ranges import ranges_of
from streamkit.groups.settings import GroupSettings

_encode, _decode = msgspec.msgpack.encode, msgspec.msgpack.Decoder(LaneBatch).decode


@dataclass
class Ticket:
    """A job of the model: fresh, pending, waiting or dead. The model drops done jobs."""

    key: int
    priority: int
    what: str = "fresh"
    who: str = ""
    lot: int = 0
    until: int = 0
    attempt: int = 0
    doubted: bool = False
    """Waiting: it is not known whether it was handled."""
    alone: str = ""
    """Pending: "sole" if its consumer had nothing else, "lone" if it gets nothing else."""
    error: str = ""


class LaneModel(RuleBasedStateMachine):
    keyed = False

    @initialize(most=st.integers(1, 3))
    def begin(self, most: int) -> None:
        self.settings = GroupSettings(
            mode="key_shared" if self.keyed else "shared", max_deliveries=most, max_pending=7, ack_timeout=1.0
        )
        self.state = LaneState(0, 1, self.keyed)
        self.records: list[bytes] = []
        self.at = 1000
        self.tickets: dict[int, Ticket] = {}
        self.next = 0
        self.epoch = 1

    def write(self, *events: Any) -> None:
        record = _encode(LaneBatch(self.at, b"", list(events)))
        self.records.append(record)
        self.state.apply(_decode(record))

    # -- what happens -------------------------------------------------------------------------------------------

    @rule(
        keys=st.lists(st.integers(0, 3), min_size=1, max_size=6),
        priority=st.integers(0, 2),
        bucket=st.integers(0, 2),
        delayed=st.booleans(),
    )
    def add(self, keys: list[int], priority: int, bucket: int, delayed: bool) -> None:
        ready = tuple(self.at + 500 * at for at in range(len(keys))) if delayed and not self.keyed else ()
        told = tuple(keys) if self.keyed else ()
        if self.keyed:
            priority = 0
        self.write(
            Added(
                [
                    EntryBlock(
                        self.next, len(keys), 0, StreamCursor(self.next, 1), self.epoch, priority, bucket, told, ready
                    )
                ]
            )
        )
        for at, key in enumerate(keys):
            ticket = Ticket(key, priority)
            if ready:
                ticket.what, ticket.until = "waiting", ready[at]
            self.tickets[self.next + at] = ticket
        self.next += len(keys)

    @rule(milliseconds=st.sampled_from([1, 400, 1000, 5000]))
    def time_passes(self, milliseconds: int) -> None:
        self.at += milliseconds

    def may_be_delivered(self, number: int) -> bool:
        ticket = self.tickets[number]
        if ticket.what == "fresh":
            return True
        return ticket.what in ("waiting", "pending") and ticket.until <= self.at

    def live(self, who: str | None = None) -> list[int]:
        return [
            number for number, ticket in self.tickets.items() if ticket.what == "pending" and who in (None, ticket.who)
        ]

    @rule(who=st.sampled_from("ab"), limit=st.integers(1, 9))
    def receive(self, who: str, limit: int) -> None:
        mine = [ticket for ticket in self.tickets.values() if ticket.what == "pending" and ticket.who == who]
        held = [ticket for ticket in mine if ticket.until > self.at]
        if any(ticket.alone == "lone" for ticket in held):
            return
        idle = not held
        due = lone_is_due(self.state, self.settings, who, self.at)
        got = claim(self.state, self.settings, who, limit, self.at, idle=idle)
        room = min(limit, 7 - len(self.live(who)))
        if idle and room > 0:
            assert got.lone == due
        may = [number for number in self.tickets if self.may_be_delivered(number)]
        for number in got.dead:
            assert number in may
            assert self.fate(number) == "dead"
        usable = [number for number in may if self.fate(number) == "deliver"]
        lone = [number for number in may if self.fate(number) == "alone"] if idle else []
        chosen = [number for number, _ in got.tickets]
        assert len(set(chosen)) == len(chosen) <= max(room, 0)
        if got.lone:
            assert len(chosen) == 1
            assert chosen[0] in lone
            assert not self.keyed or not self.is_busy(self.tickets[chosen[0]].key)
        else:
            assert set(chosen) <= set(usable)
        if self.keyed:
            self.check_keys(chosen, set(got.dead), room, bool(lone))
        else:
            first = max([self.priority(number) for number in lone], default=-1)
            usable = [number for number in usable if self.priority(number) > first]
            assert not got.lone or not usable
            assert got.lone or len(chosen) == max(0, min(room, len(usable)))
            least = min([self.tickets[number].priority for number in chosen], default=0)
            assert all(self.priority(number) <= least for number in usable if number not in chosen) or not chosen
        for number, attempt in got.tickets:
            before = self.tickets[number].attempt
            assert attempt == (min(before + 1, self.settings.max_deliveries) if got.lone else before + 1)
        if got.tickets:
            for number in [number for number, ticket in self.tickets.items() if ticket in held and ticket.alone]:
                self.write(Doubted([(number, 1)]))
                self.tickets[number].alone = ""
        if got.events:
            self.write(*got.events)
        for number in got.dead:
            self.tickets[number].what = "dead"
        for number, attempt in got.tickets:
            assert got.event is not None
            ticket = self.tickets[number]
            ticket.what, ticket.who, ticket.lot = "pending", who, got.event.lot
            ticket.until, ticket.attempt, ticket.doubted = got.event.deadline, attempt, False
            last = idle and len(got.tickets) == 1 and attempt >= self.settings.max_deliveries
            ticket.alone = "lone" if got.lone else "sole" if last else ""

    def fate(self, number: int) -> str:
        """The fate of an entry that may be delivered."""
        ticket, most = self.tickets[number], self.settings.max_deliveries
        unknown = ticket.doubted if ticket.what == "waiting" else ticket.what == "pending" and not ticket.alone
        if unknown:
            return "alone" if ticket.attempt + 1 >= most else "deliver"
        return "dead" if ticket.attempt >= most else "deliver"

    def is_busy(self, key: int) -> bool:
        return any(
            ticket.key == key and ticket.what == "pending" and ticket.until > self.at
            for ticket in self.tickets.values()
        )

    def priority(self, number: int) -> int:
        return self.tickets[number].priority if self.state.block_of(number) is not None else 0

    def check_keys(self, chosen: list[int], dead: set[int], room: int, lone: bool) -> None:
        """In key_shared, a claim takes the first open entry of a key, and no other consumer has an entry of the key."""
        for key in range(4):
            open_ = [
                number
                for number, ticket in sorted(self.tickets.items())
                if ticket.key == key and ticket.what != "dead" and number not in dead
            ]
            mine = [number for number in chosen if self.tickets[number].key == key]
            assert mine == open_[: len(mine)]
            busy = any(
                self.tickets[number].what == "pending" and self.tickets[number].until > self.at for number in open_
            )
            if mine:
                assert not busy
            elif open_ and not busy and len(chosen) < room and not lone:
                assert not self.may_be_delivered(open_[0]) or self.fate(open_[0]) == "alone"

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def ack(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.sampled_from(self.live()), unique=True, min_size=1))
        self.write(Acked(ranges_of(numbers)))
        for number in numbers:
            del self.tickets[number]

    @precondition(lambda self: self.live())
    @rule(data=st.data(), delay=st.sampled_from([None, 0.0, 0.7]), error=st.sampled_from(["", "E: 1", "E: 2"]))
    def nack(self, data: st.DataObject, delay: float | None, error: str) -> None:
        number = data.draw(st.sampled_from(self.live()))
        ticket = self.tickets[number]
        events, lost = give_up(self.state, self.settings, [number], self.at, delay, error)
        self.write(*events)
        ticket.error = error or ticket.error
        if ticket.attempt >= self.settings.max_deliveries:
            ticket.what = "dead"
            assert lost == []
            assert not ticket.error or ticket.error in self.state.dead[number].reason
            return
        ticket.alone = ""
        pause = 1000 * 2 ** (ticket.attempt - 1) if delay is None else int(delay * 1000)
        ticket.what, ticket.until = "waiting", self.at + pause
        later = [each for each in self.live() if self.keyed and each > number and self.tickets[each].key == ticket.key]
        assert lost == later
        self.given_back(lost)

    @precondition(lambda self: not self.keyed and len(self.live()) > 1)
    @rule(data=st.data())
    def fail_together(self, data: st.DataObject) -> None:
        numbers = data.draw(st.lists(st.sampled_from(self.live()), unique=True, min_size=2))
        events, lost = give_up(self.state, self.settings, numbers, self.at, 0.0, "E: 3", True)
        assert lost == []
        self.write(*events)
        for number in numbers:
            ticket = self.tickets[number]
            ticket.what, ticket.until, ticket.doubted, ticket.alone = "waiting", self.at, True, ""
            ticket.error = "E: 3"

    def given_back(self, numbers: list[int]) -> None:
        for number in numbers:
            ticket = self.tickets[number]
            ticket.doubted, ticket.alone = bool(ticket.alone), ""
            ticket.what, ticket.until, ticket.attempt = "waiting", self.at, ticket.attempt - 1

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.live()))
        numbers = [number, *(behind(self.state, number) if self.keyed else [])]
        self.write(Released(ranges_of(numbers)))
        self.given_back(numbers)

    @precondition(lambda self: self.live())
    @rule(data=st.data(), seconds=st.integers(1, 5))
    def extend(self, data: st.DataObject, seconds: int) -> None:
        number = data.draw(st.sampled_from(self.live()))
        self.write(Extended([(number, 1)], self.at + seconds * 1000))
        self.tickets[number].until = self.at + seconds * 1000

    @precondition(lambda self: self.live())
    @rule(data=st.data())
    def reject(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(self.live()))
        self.write(Died([(number, 1)], "no"))
        self.tickets[number].what = "dead"

    @rule()
    def redrive(self) -> None:
        numbers = [number for number, ticket in self.tickets.items() if ticket.what == "dead"]
        if numbers:
            self.write(Redriven(ranges_of(numbers)))
        for number in numbers:
            ticket = self.tickets[number]
            self.tickets[number] = Ticket(ticket.key, ticket.priority, "waiting", until=self.at)

    @precondition(lambda self: self.tickets)
    @rule(data=st.data(), trimmed=st.booleans())
    def vanish(self, data: st.DataObject, trimmed: bool) -> None:
        """Let entries of the source vanish, in any state."""
        numbers = data.draw(st.lists(st.sampled_from(sorted(self.tickets)), unique=True, min_size=1, max_size=5))
        self.write(Vanished(ranges_of(numbers), trimmed))
        for number in numbers:
            del self.tickets[number]

    @rule(chance=st.integers(0, 9))
    def reset(self, chance: int) -> None:
        if chance == 0:
            self.epoch += 1
            self.write(Reset(self.epoch))
            self.tickets.clear()

    @rule()
    def load_the_snapshot(self) -> None:
        fresh = LaneState(0, 1, self.keyed)
        fresh.restore(self.state.save())
        assert fresh.save() == self.state.save()
        self.state = fresh

    # -- what must hold -----------------------------------------------------------------------------------------

    @invariant()
    def the_state_says_the_same(self) -> None:
        if not hasattr(self, "state"):
            return
        state, tickets = self.state, self.tickets
        for what, known in (("pending", state.pending), ("waiting", state.waiting), ("dead", state.dead)):
            assert set(known) == {number for number, ticket in tickets.items() if ticket.what == what}
        assert state.fresh() == sum(ticket.what == "fresh" for ticket in tickets.values())
        for number, lot in state.pending.items():
            ticket = tickets[number]
            assert lot == (ticket.lot, ticket.who, ticket.until, ticket.attempt)
        for number, wait in state.waiting.items():
            assert wait == (tickets[number].until, tickets[number].attempt)
        for number in tickets:
            assert state.location(number).position == number
        assert state.doubted == {
            number for number, ticket in tickets.items() if ticket.doubted and ticket.what != "dead"
        }
        assert state.alone == {number for number, ticket in tickets.items() if ticket.alone and ticket.what != "dead"}
        errors = {number: ticket.error for number, ticket in tickets.items() if ticket.error and ticket.what != "dead"}
        assert {number: error for number, (_, error) in state.errors.items()} == errors
        assert state.held == {who: len(self.live(who)) for who in "ab" if self.live(who)}
        assert state.expires <= min([lot.deadline for lot in state.pending.values()], default=1 << 62)
        assert sum(block.left for block in state.blocks.values()) + len(state.redriven) == len(tickets) - len(
            state.dead
        )

    def teardown(self) -> None:
        """The records alone give the same state."""
        if not hasattr(self, "records"):
            return
        again = LaneState(0, 1, self.keyed)
        for record in self.records:
            again.apply(_decode(record))
        mine, other = LaneState(0, 1, self.keyed), LaneState(0, 1, self.keyed)
        mine.restore(self.state.save())
        other.restore(again.save())
        for name in (
            "pending",
            "waiting",
            "dead",
            "redriven",
            "acked",
            "lots",
            "keys",
            "held",
            "doubted",
            "alone",
            "errors",
        ):
            assert getattr(mine, name) == getattr(other, name), name


class KeyedLaneModel(LaneModel):
    keyed = True


for each in (LaneModel, KeyedLaneModel):
    each.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30, deadline=None)
TestLane = LaneModel.TestCase
TestKeyedLane = KeyedLaneModel.TestCase
