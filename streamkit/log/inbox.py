"""The inbox: processes that compete for one partition have one of them commit for all.

The inbox is used only if a call is a network request. A process that has lost twice *posts* its requests: it puts them
as a message into the partition, unconditionally, and looks at the log. The process that writes the next transaction
*leads*: it lists the inbox, judges the messages like its own queue, and says in the header which requests are settled
and which process leads next.

Safety does not depend on any of this: the writer of the next number has won, whether it was the lead or not.

- A posted request has an id. A process commits it only if it has read every header since the request was posted, so
  the request is committed once. After WINDOW transactions no process commits it, so nobody has to remember more.
- A posted request relies on committed transactions only. A request that does not hold any more never will again. Its
  own process sees that in the log, and nobody has to answer it.
- The leading process goes on if its callers come back at once. Otherwise it names a waiting process. If the log stands
  still, a waiting process takes over: see pace.py.
"""

from __future__ import annotations

from collections.abc import Callable

from ..backend import Ambiguous
from ..errors import CorruptData, StreamkitError
from ..reentry import Reentered
from ..warn import log_info
from .answers import WINDOW
from .inbox_message import InboxMessage, decode_message, encode_message, is_in_key, message_range, posted_by
from .keys import inbox_key
from .pace import LONGEST, Pace
from .partition import Partition
from .plan import Plan
from .record_format import NOBODY
from .request import Request

__all__ = ["Inbox"]

_LOOK = (64, 1.0)
"""Transactions and seconds after which a process that meets no other looks into the inbox."""
_MET = 4
"""Transactions after which a process that has lost looks into the inbox: others lose as well, and may have posted."""
_LARGE = 128 << 10
"""The most bytes that are posted at once. A process with more to write asks for the lead, so that they are sent once
and not three times."""
_TOGETHER = 4 << 20
"""The most bytes of others' requests in one transaction. Every waiting process reads them."""
_FRAMES = 2048
_GETS = 64
"""Messages that are read at once, the oldest first. Many more would take too long and be throttled. Fewer are left the
next time."""
_EMPTY = 4
"""Empty inboxes in a row after which every process writes for itself again."""
_SPENT = 200
"""The number of settled messages at which they are removed."""
_PASSED = 6
"""Transactions that may leave a posted request out before its process stops relying on the lead."""
_SKIPPED = 3
"""Transactions that may leave a posted request out before it is posted again: a new lead cannot know whether an older
message is settled."""
_LATE = 4
"""Waits in a row that found a transaction at once. After more of them the head is read."""
_GATHER = 0.002
"""Seconds to wait for more requests of this process. Few, compared with a post."""


class Inbox:
    """One process's use of a partition's inbox. Only the leading thread of the process calls it."""

    def __init__(self, partition: Partition, node: bytes, new_id: Callable[[], bytes]) -> None:
        self._partition = partition
        self._key = bytes(inbox_key(partition.space, partition.partition))
        self._node = node
        self._new_id = new_id
        self._losses = partition.policy.losses
        self._pace = Pace(partition)
        self._unlooked = 0
        """Transactions since the last look into the inbox."""
        self._met = False
        """A transaction since that look was lost to another writer."""
        self._looked = partition.clock.monotonic()
        self._messages: dict[bytes, InboxMessage] = {}
        """The messages that were read and are still there, by key."""
        self._unsettled: list[InboxMessage] | None = None
        """Messages that were just read, for the next transaction."""
        self._spent: list[bytes] = []
        self._empty = 0
        """Looks in a row that found the inbox empty."""
        self._candidacy = b""
        """The id of this process's candidacy, which no lead has named yet; else empty."""
        self._candidate_since = 0
        self._late = 0
        """Waits in a row that ended after a transaction had been written."""
        self._passes = 0
        """Transactions of the lead that left this process out while it waited."""
        self._nodes: set[bytes] = set()
        """The processes whose messages are not settled."""
        self._complete = False
        """`_nodes` has every waiting process, because the log stood still before the messages were listed."""
        self._unread: list[bytes] = []
        """The ids of messages that were not read, because there were too many."""
        self._seen: dict[bytes, float] = {}
        """The last time that a process had a message, by process."""
        self._began = 0.0
        self._takes = 0.0
        """Seconds from the look into the inbox until its requests are committed, on average."""
        self._left = float("-inf")
        """The time when the callers of the last transaction were answered."""
        self._returns = False
        """The callers of the last transaction came back at once."""
        self._crowd = 0
        """The number of requests that the last transaction answered."""
        self._gathered = True

    def arrive(self) -> None:
        """Note that there are requests to commit."""
        self._unsettled = None
        self._gathered = self._crowd < 2
        self._returns = self._partition.clock.monotonic() - self._left < self._pace.round / 4

    def leave(self, count: int) -> None:
        """Note that `count` requests have their answers."""
        self._crowd = count
        self._pace.arrive()
        self._pace.observe()  # the log has gone on now, before the callers come back
        self._passes = 0
        self._left = self._partition.clock.monotonic()
        if self._began:
            self._takes += (min(self._left - self._began, LONGEST) - self._takes) / 4
            self._began = 0.0

    def enter(self, plan: Plan, lost: int, more: bool) -> bool:
        """Post `plan`, extend it, or leave it as it is, before it is written. True: it is out of date, because the
        process waited for others.

        `lost`: earlier attempts to write the same plan. `more`: other requests of this process are queued behind it.
        """
        partition = self._partition
        lead = partition.answers.lead.name
        self._unlooked += 1
        self._met = self._met or lost > 0
        if not lead and lost < self._losses and not self._looks():
            return False
        self._pace.observe(lost > 0)
        if plan.given_up or any(request.void is not None or request.control is not None for request in plan.ready):
            return False  # no other process can write it
        if self._unsettled is not None:
            return self._lead(plan, more)
        if lead and (lead in (self._node, self._candidacy) or any(request.id == lead for request in plan.ready)):
            return self._lead(plan, more)
        if lead and not self._pace.is_old():
            if self._pace.rest() <= 0 or self._pace.is_passed(self._passes, _PASSED):
                number = partition.number + 1
                message = "%s: the process that was to lead does not lead, and this process takes over"
                log_info(message, partition.where(number), space=partition.space, transaction=number)
                partition.counters["taken_over"] += 1
                self._pace.take_over()
                self._passes = 0
                return self._lead(plan, more)
            if not self._gathered:
                # The others of this process come back as well, and have room in the same message.
                self._gathered = True
                partition.clock.sleep(_GATHER)
                return True
            self._post(plan)
            self._wait()
            return True
        if lost >= self._losses:
            self._post(plan)
            plan.lead, plan.waiting = self._node, partition.answers.lead.waiting
        elif self._looks():
            return self._lead(plan, more)
        return False

    def _looks(self) -> bool:
        """True if it is time for an occasional look into the inbox."""
        most, seconds = _LOOK
        if self._partition.answers.lead.name and self._unlooked > 1:
            return True  # others may wait for a process that leads no more
        if self._met and self._unlooked > _MET:
            return True
        return self._unlooked > most and self._partition.clock.monotonic() - self._looked >= seconds

    def _wait(self) -> None:
        """Wait until the log has moved, or stands still."""
        partition, clock = self._partition, self._partition.clock
        pace, named_by = self._pace, partition.answers.lead.named_by
        pace.draw()
        if self._late > _LATE:
            partition.read_head()
        pause = 0.0 if self._late else pace.due() - clock.monotonic()
        if pause > 0:
            clock.sleep(pause)
        slept, pause = pause > 0, pace.pause()
        while not partition.poll():
            rest = pace.rest()
            if rest <= 0:
                return
            if not pace.stands():  # else no process has its turn, and the next look is not due
                pace.looked(False)
            slept = True
            clock.sleep(min(pause, rest))
            pause *= 1.5
        if slept:
            pace.looked(True)
        self._late = 0 if slept else self._late + 1
        if partition.answers.lead.named_by != named_by:
            self._passes += 1
        pace.observe()

    # -- those that wait ----------------------------------------------------------------------------------------

    def _post(self, plan: Plan) -> None:
        """Put the plan's requests that are not posted yet, or must be posted again, into the inbox as one message."""
        partition, since = self._partition, plan.base.number
        skipped = not self._late and self._pace.is_passed(self._passes, _SKIPPED)
        sent: list[Request] = []
        fresh: list[Request] = []
        size = 0
        for request in plan.posted:
            if request.id is not None and not (skipped and since >= request.since + _SKIPPED):
                continue
            size += sum(part.size for part in request.parts)
            if size > _LARGE:
                continue
            if request.id is not None:
                request.since = request.checked = since  # first of all: from now on it may be committed for longer
                sent.append(request)
                continue
            id = self._new_id()
            if request.board(id, 0):
                request.since = request.checked = since
                request.id = id
                if request.withdrawn:  # the withdrawing thread may not have seen the id
                    request.id = None
                    request.leave()
                else:
                    sent.append(request)
                    fresh.append(request)
        if not sent:
            if self._is_candidate() or not plan.posted or any(request.id for request in plan.posted):
                return
            self._candidacy, self._candidate_since = self._new_id(), since
        id = (sent[0].id if sent else None) or self._candidacy
        key, value = encode_message(partition.settings.incarnation, partition.seed, since, id, self._node[:4], sent)
        try:
            partition.backend.put(self._key, key, value)
        except Ambiguous:
            pass  # the message exists, or arrives later, or never: the log decides
        except (StreamkitError, Reentered):
            self._candidacy = b""
            for request in fresh:
                request.id = None
                request.leave()
            raise
        partition.counters["posted"] += len(fresh)
        if fresh or not sent:
            self._passes = 0

    def _is_candidate(self) -> bool:
        """True if this process's candidacy is not settled, and not out of date."""
        partition = self._partition
        return (
            self._candidacy != b""
            and partition.answers.get(self._candidacy) is None
            and self._candidate_since >= partition.answers.since
            and partition.number < self._candidate_since + WINDOW
        )

    # -- the one that leads -------------------------------------------------------------------------------------

    def _lead(self, plan: Plan, more: bool) -> bool:
        """Add the requests that others have posted, and name the next lead. True: plan again, because the log may have
        moved."""
        if self._unsettled is None:
            partition = self._partition
            pause = self._pace.hold(self._takes)
            if pause > 0:
                partition.clock.sleep(pause)
            self._began = partition.clock.monotonic()
            self._complete = self._pace.stands()
            self._unsettled = self._read()
            return True
        unsettled, self._unsettled = self._unsettled, None
        self._unlooked, self._met, self._looked = 0, False, self._partition.clock.monotonic()
        plan.waiting = self._count()
        contended = self._partition.answers.lead.name
        mine = {request.id for request in plan.ready}
        messages, candidates = [], []
        for inbox_message in unsettled:
            if not inbox_message.requests:
                candidates.append(inbox_message.id)
            elif any(request.id not in mine for request in inbox_message.requests):
                messages.append(inbox_message)
        found = bool(messages or candidates or self._unread)
        self._empty = 0 if found else self._empty + 1
        if self._candidacy:
            plan.voids.append(self._candidacy)
        if candidates := [id for id in candidates if id != self._candidacy]:
            plan.lead = candidates[0]
            plan.voids.append(plan.lead)  # it is named once
        elif more or self._returns:
            plan.lead = self._node if found or self._empty < _EMPTY else NOBODY
        elif self._unread:
            plan.lead = self._unread[0]
        elif messages:
            # Its process waits for sure, because the message is left out of this transaction.
            plan.lead = next(request.id for request in messages.pop().requests if request.id not in mine) or b""
        else:
            plan.lead = NOBODY
        if not (found or contended):
            plan.lead = b""
        self._candidacy = b""
        size = frames = 0
        for inbox_message in messages:
            for request in inbox_message.requests:
                size += sum(part.size for part in request.parts)
                frames += len(request.parts) + 1
            if size > _TOGETHER or frames > _FRAMES:
                break
            if not plan.add_posted(inbox_message.requests):
                return True
        return False

    def _count(self) -> int:
        """The number of processes that have posted recently."""
        now = self._partition.clock.monotonic()
        for node in self._nodes:
            self._seen[node] = now
        self._seen = {node: seen for node, seen in self._seen.items() if now - seen < 1.0 + 2 * self._pace.round}
        if self._complete:
            return len(self._nodes)
        # A process that has just begun to lead has not seen them all.
        return max(len(self._seen), self._partition.answers.lead.waiting * 3 // 4)

    def _read(self) -> list[InboxMessage]:
        """The messages that are not settled, the oldest first."""
        partition, answers = self._partition, self._partition.answers
        backend, incarnation, seed = partition.backend, partition.settings.incarnation, partition.seed
        start, end = message_range(incarnation, max(0, partition.number + 1 - WINDOW))
        keys = [row.key for row in backend.scan(self._key, start, end, values=False)]
        messages = {key: self._messages[key] for key in keys if key in self._messages}
        large = [key for key in keys if key not in messages and not is_in_key(incarnation, key)]
        large.sort(key=lambda key: answers.get(posted_by(incarnation, key)[0]) is not None)  # those are done, mostly
        large = large[:_GETS]
        values = dict(zip(large, backend.get(self._key, large), strict=True)) if large else {}
        for key in keys:
            value = values.get(key)
            if key in messages or (value is None and not is_in_key(incarnation, key)):
                continue
            try:
                messages[key] = decode_message(incarnation, seed, key, value.data if value else b"")
            except CorruptData as error:
                message = "%s: %s; its process will see that nobody commits it"
                log_info(message, partition.where(partition.number), error, space=partition.space)
        self._messages, self._spent = messages, []
        self._nodes.clear()
        self._unread.clear()
        unsettled = []
        for key in keys:
            inbox_message = messages.get(key)
            if inbox_message is None:
                id, node = posted_by(incarnation, key)
                if answers.get(id) is None and key not in values:
                    self._nodes.add(node)
                    self._unread.append(id)
                continue
            if all(request.done or answers.get(request.id or b"") for request in inbox_message.requests) and (
                inbox_message.requests or answers.get(inbox_message.id)
            ):
                self._spent.append(key)
            else:
                unsettled.append(inbox_message)
                self._nodes.add(inbox_message.node)
        return unsettled

    def sweep(self) -> None:
        """Remove the settled messages, if there are many or no process leads."""
        partition = self._partition
        if len(self._spent) >= _SPENT or (self._spent and not partition.answers.lead.name):
            spent, self._spent = self._spent, []
            try:
                partition.backend.delete(self._key, spent)
            except StreamkitError as error:
                message = "%s: messages could not be removed: %s"
                log_info(message, partition.where(partition.number), error, space=partition.space)
            self._left = partition.clock.monotonic()  # it is not its caller's time
