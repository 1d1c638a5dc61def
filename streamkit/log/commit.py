"""The commit: one conditional write that makes entries visible and gives them their position, at the same moment.

Group commit: while one commit of a partition is in flight, further requests queue up, and the next transaction takes
all of them. Each request is judged for itself, so that one caller's mismatch is never its neighbour's.

The callers' own threads do the work: one of them leads, the others wait. A thread may be stopped anywhere, by an
interrupt or another exception that is none of ours, so nothing relies on its last steps:

- a thread leads for as long as it holds its request's lock, which the interpreter releases however the thread leaves;
- requests stay queued until they are done, and a transaction in flight stays noted until its outcome is known, so that
  the next leader settles it. Neither is needed for the only request of a process: nobody else waits for its outcome;
- waking a thread up is a hint: a waiter also looks for itself, from time to time.
"""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from threading import Lock, get_ident, main_thread
from time import perf_counter
from typing import TYPE_CHECKING
from uuid import UUID

import msgspec

from ..backend import NEXT, Ambiguous, Conflict
from ..errors import AccessDenied, OutcomeUnknown, StoreClosed, StreamkitError, Unavailable, UnsupportedVersion
from ..importing import IMPORTING
from ..reentry import Reentered, inside_backend, refused
from ..warn import warn
from .commit_base import LoneBase
from .floors import join_controls
from .freshness import Look
from .ids import BITS, draw, made_at, new_id
from .lone import Lone
from .outcome import Outcome, outcome_of, tag_of
from .partition import Partition
from .plan import Plan
from .policy import NEVER
from .posted_answers import replay_answers, upkeep_owner
from .record_format import NOBODY, VOID, Body, Header, KeyUse, decode_header, encode_transaction
from .request import Part, Request, wake_first
from .rows import SegmentRow
from .segment_view import counted
from .tail import Tail

if TYPE_CHECKING:
    from .inbox import Inbox

__all__ = ["Committer", "Upkeep"]

_MOST_FRAMES = 4096
_ATTEMPTS = 6
_LOSSES = 1000
_SUSPECT = 16
"""Lost commits in a row after which a commit looks at the head of its space."""
_TAIL_BYTES = 16 << 20
_TAIL_FRAMES = 1 << 14
"""The most frames of the tail. A process that opens the space reads them first, in a microsecond each."""
_EARLY = 2048, 4 << 20
"""The transactions and the bytes of the tail with which an upkeep is due before the policy's number of transactions."""
_ALL = 1 << 62, 1 << 62, 1 << 62
_PATIENCE = 2
"""The factor by which a tail may be longer than at a due upkeep, while another process does the upkeep."""
_LOOK = 1 / 8
"""The share of that length after which the head is read again."""
_TURNS = 4
"""The turns of an upkeep's period: one brings the index forward, and three may merge."""
_UNKNOWN = 10_000
"""Transactions of unknown outcome that are remembered, so that their callers can ask about them."""
_WIDE = 256
"""Parts of a transaction that take longer to encode than a look at the end of the log takes, on a disk."""
_LOOKS = 2
"""Looks before a wide transaction is encoded that may find others' transactions, and lead to another plan."""
_LET_IN = 0.003
"""The most seconds to let callers in. A thread that computes keeps the interpreter for 5 ms."""
_AT_ONCE = 0.00003
"""Seconds of a write, as to memory, in which no caller comes: it costs more to let callers in than to commit again."""
_HASTE = 100
"""The next commits that let no caller in, after that has taken too long."""
_HEARTBEAT = 0.1
"""Seconds after which a waiting thread checks that another one still leads."""


def _length(behind: int, size: int, frames: int, upkeep: int) -> float:
    """The length of a tail: with 1 or more, an upkeep is due."""
    early = min(behind / _EARLY[0], size / _EARLY[1])
    return max(behind / upkeep, size / _TAIL_BYTES, frames / _TAIL_FRAMES, early)


Upkeep = Callable[[Partition], bool]
"""Brings the index forward to the known end of the log, or merges some of it. False if another process did it."""


class Flight(msgspec.Struct, eq=False):
    """A transaction that is being written."""

    requests: Sequence[Request]
    results: Sequence[dict[str, SegmentRow]]
    after: Mapping[str, SegmentRow]
    """The statuses after it of the segments that it writes to."""
    looked: Look | None
    key: bytes
    record: bytes
    count: int
    """The number of its entries."""
    seed: int
    given_up: Sequence[tuple[Request, StreamkitError]] = ()
    failed: StreamkitError | None = None
    winner: bytes | None = None
    """The transaction that has its number."""
    known: Header | None = None

    @property
    def header(self) -> Header:
        """The header of its record."""
        if self.known is None:
            self.known = decode_header(self.record, self.seed)
        return self.known

    def clear(self) -> None:
        """Tell the requests of a flight that it was not written, and never will be."""
        for request in self.requests:
            request.leave()


class LoneLeader(msgspec.Struct, eq=False, gc=False):
    """The leader while a thread commits one part alone: it stands in the place of a request."""

    alive: threading.Lock
    thread: int
    leads: bool = True
    done: bool = False


def _stopped(error: BaseException) -> Unavailable:
    return Unavailable(
        f"the thread that was to commit was stopped by {type(error).__name__}; nothing was written: write again"
    )


def _segments(requests: Sequence[Request]) -> list[str]:
    return [part.segment for request in requests for part in request.parts]


class Committer:
    """Commits requests to one partition, one transaction at a time."""

    def __init__(
        self, partition: Partition, node: bytes, most_bytes: int, bring_forward: Upkeep, merge: Upkeep
    ) -> None:
        self.partition = partition
        self.node = node
        self.most_bytes = most_bytes
        self.unknown: dict[bytes, int] = {}
        """Transactions whose outcome could not be learned, and the numbers they were for; posted requests, and 0."""
        self.inbox: Inbox | None = None
        if partition.policy.losses < NEVER:
            with IMPORTING:
                from .inbox import Inbox
            self.inbox = Inbox(partition, node, self._new_id)
        self._bring_forward = bring_forward
        self._merge = merge
        self._turn = max(1, partition.policy.upkeep // _TURNS) if partition.remote else 0
        """The number of transactions after which there is time to merge, if calls are requests; 0 if they are not."""
        self._queue: deque[Request] = deque()
        """Requests that are not done, and some that are."""
        self._mutex = threading.RLock()
        """Guards the queue and the leader; never held during I/O."""
        self._holds_mutex: Callable[[], bool] = self._mutex._is_owned  # type: ignore[attr-defined]
        self._holds_lock = partition.holds_lock
        self._leader: Request | LoneLeader = Request(())
        """The request that leads while it is alive. Then any other may lead."""
        self._lone_leader = LoneLeader(Lock(), 0)
        """The leader of the last `commit_alone`. Only its thread takes it again: to make another one costs more."""
        self._last_woken: Request | None = None
        """The request of the last commit whose caller is the last one to be woken up."""
        self._at_once = False
        """The last shared commit was written at once."""
        self._haste = 0
        """Commits before which no caller is let in, because that took too long."""
        self._flight: Flight | None = None
        """The transaction whose outcome is not known yet. Only the leading thread touches it."""
        self._submitted = False
        """True if there are, or were, requests without a thread."""
        self._taken: Sequence[Request] = ()
        """The requests of the next flight. Only the leading thread touches it."""
        self._upkeep = threading.Lock()
        """Held by the thread that brings the index forward."""
        self._next_upkeep = 0
        self._chosen = False
        """This process is to bring the index forward."""
        self._last: tuple[int, int, int] | None = None
        """The length that the last transaction of this process added to the tail: all of it before the second one."""
        self._looked: tuple[Tail | None, float] = None, 0.0
        """The tail that another process is to index, and how long it was when the head was last read."""

    # -- the leader ---------------------------------------------------------------------------------------------

    def commit(self, request: Request) -> None:
        """Commit `request`. Raises its error."""
        if request.key is None and request.fence is None and request.control is None and len(request.parts) == 1:
            (part,) = request.parts
            made = self.commit_alone(part)
            if made is not None and part.body is not None:
                _, _, row, _, trx, request.status = made
                request.succeed({part.segment: row}, trx, part.body.count)
                return
        self.commit_queued(request)

    def commit_queued(self, request: Request) -> None:
        """Commit `request` together with those of other threads. Raises its error."""
        queue = self._queue
        leads = False
        try:
            with request.alive:
                leads = self._join(request)
                while not request.done:
                    if leads:
                        self._commit_next(request)
                    else:
                        leads = self._wait(request)
        except Reentered as error:
            if request.id is not None and not request.done:
                # Something was done: it is posted.
                self.note(request.id, 0)
                raise request.unknown(request.id) from error
            raise
        finally:
            try:  # noqa: SIM105  (suppress costs more than the code around it)
                queue.remove(request)
            except ValueError:
                pass  # the next leader has dropped it
            if queue and leads:
                self._pass_on(request)
            if self._last_woken is request:
                self._last_woken = None
            if request.following is not None:
                wake_first(request.following)
                request.following = None  # the frame may live on in a traceback, and would keep all later requests
        if request.error is not None:
            raise request.error
        if leads or self.inbox is not None:
            self.keep_index()

    def commit_alone(self, part: Part) -> Lone | None:
        """Commit a part, as `commit` does, in a transaction of its own if this process has no other request. None if it
        has to be committed by `commit_queued`: then nothing was written.

        Its thread leads meanwhile. No flight is noted: if the thread is stopped, the next commit finds the transaction
        in the log.
        """
        partition, segment, body, holds_lock = self.partition, part.segment, part.body, self._holds_lock
        if partition.remote or body is None or self._queue or holds_lock():
            return None
        lead = self._lone_leader
        if lead.thread != get_ident() or lead.alive.locked():
            self._lone_leader = lead = LoneLeader(Lock(), get_ident())
        try:
            with lead.alive:
                leader = self._leader
                if leader is not lead and leader.alive.locked():
                    return None
                # Up to the assignment nothing is called, so no other thread runs. Others queue up before they look for
                # a leader. If two led, one of them would lose its number and try again.
                if self._queue or self._flight is not None or self._leader is not leader:
                    return None
                self._leader = lead
                base = partition.lone_base(segment)
                if base is not None:
                    partition.counters["cache_hits"] += 1
                elif partition.looks.completed and segment not in partition.cached:
                    partition.check_reentry()
                    partition.load_statuses((segment,))
                    base = partition.lone_base(segment)
                if base is None or (part.expected is not None and part.expected != base[0].last_sequence):
                    return None
                now, moments = partition.clock.now(), partition.moments
                timestamp = now if now >= moments.latest else moments.after(now)
                if timestamp < base[2]:
                    timestamp = base[2]
                made = partition.lone.encode(now, draw(BITS), self.node, timestamp, base, part)
                try:
                    partition.backend.put(partition.key, made[0], made[1], NEXT, durable=partition.durable)
                except StreamkitError as error:
                    if not self._settle_alone(part, base, made, error):
                        return None
                partition.committed_lone(base, made, part, timestamp, body.count)
                self._last = _ALL if self._last is None else (1, len(made[1]), 1)
        except StoreClosed:
            partition.mark_lost()
            raise
        finally:
            if self._queue:
                self._pass_on(lead)
        self.keep_index()
        return made

    def submit(self, request: Request) -> None:
        """Queue a request that no thread waits for. When it is done, or when a thread must call `drive`, its `wake` is
        called, from any thread."""
        self._submitted = True
        request.arrived = self.partition.looks.begun
        with self._mutex:
            self._queue.append(request)
            led = self._leader.alive.locked()
        if not led:
            request.wake()

    def drive(self, before_upkeep: Callable[[], object]) -> None:
        """Commit one transaction for requests that have no thread, if no thread leads. Then bring the index forward if
        it is far behind.

        Only one, so that a busy partition shares its threads with others: if more requests are queued, the first one
        is woken, and some thread drives again. The requests' own errors are not raised. A foreign exception (a fault
        in a backend, an interrupt) goes to the requests that it met: they are neither lost nor tried for ever.
        """
        driver = Request(())
        driver.thread = get_ident()
        leads = False
        try:
            with driver.alive:
                leads = self._lead(driver)
                if leads:
                    self._drive_once()
        finally:
            if leads:
                self._pass_on(driver)
        try:
            self.keep_index(before_upkeep)
        except Exception as error:
            # No request failed.
            space = self.partition.space
            warn("space %r: the index could not be brought forward: %s", space, error, space=space)

    def _drive_once(self) -> None:
        self._taken = ()
        left = self._flight
        try:
            self._commit_next()
        except BaseException as error:
            flight = self._flight
            if flight is None:
                # Nothing is in flight: each transaction that was sent before has lost its number. Requests with
                # threads find that out themselves.
                failure = error if isinstance(error, Exception) else _stopped(error)
                concerned = [request for request in self._taken or list(self._queue) if request.thread == 0]
            elif flight is left:
                failure = self._unknown(flight.header)
                concerned = [request for request in flight.requests if not request.foreign]
                self._flight = None
            else:
                return  # the next one to lead settles it
            for request in concerned:
                if not request.done:
                    request.fail_like(failure)
                    request.wake()

    def _join(self, request: Request) -> bool:
        """Queue `request`. True if its thread leads."""
        request.thread = thread = get_ident()
        request.arrived = self.partition.looks.begun
        self.partition.check_reentry()
        if self._holds_mutex():
            # A signal handler calls in the middle of another call of this thread, which holds the lock.
            raise refused()
        with self._mutex:
            self._queue.append(request)
            leader = self._leader
            if leader.alive.locked():
                if leader.thread != thread:
                    request.turn = threading.Lock()
                    request.turn.acquire()
                    return False
                # The named request waits below this call, in the same thread, so it cannot begin to lead.
                if leader.leads:
                    raise refused()
            request.leads = True
            self._leader = request
        return True

    def _lead(self, request: Request) -> bool:
        """Lead for `request`, if no thread leads."""
        with self._mutex:
            leader = self._leader
            # As in `_join`.
            if leader is not request and leader.thread != request.thread and leader.alive.locked():
                return False
            request.leads = True
            self._leader = request
        return True

    def _wait(self, request: Request) -> bool:
        """Wait until `request` is done, or no thread leads. True if its own thread leads then."""
        assert request.turn is not None
        # Signal handlers run in the main thread, finalizers in any.
        handles = request.thread == main_thread().ident
        if handles or (not request.turn.acquire(timeout=_HEARTBEAT) and not request.done):
            if inside_backend():
                # The leader may wait for a lock that this thread holds, below the handler that called.
                self._withdraw(request)
            if handles:
                request.turn.acquire(timeout=_HEARTBEAT)
        return not request.done and self._lead(request)

    def _withdraw(self, request: Request) -> None:
        """Withdraw `request`. Reentered, or OutcomeUnknown if it is being written already."""
        request.withdrawn = True
        flight = self._flight
        if flight is not None and request in flight.requests:
            raise self._unknown(flight.header)
        if request.id is not None and not request.done:
            self.note(request.id, 0)
            raise request.unknown(request.id)
        if not request.done:
            raise refused()

    def _pass_on(self, request: Request | LoneLeader) -> None:
        """Make the first waiting request lead, if it has a thread. Requests that arrive meanwhile wait behind it."""
        with self._mutex:
            if self._leader is not request:
                return
            for following in list(self._queue):
                if not following.done and not following.abandoned:
                    if following.alive.locked():
                        self._leader = following
                    break
            else:
                return
        following.wake()

    def leave_to_parent(self) -> None:
        """Leave the requests of other threads to the parent, in a forked child. If a signal handler has forked in the
        middle of a call, the child goes on with that call, when the handler returns."""
        own = get_ident()
        if not self._holds_mutex():
            self._mutex = threading.RLock()
            self._holds_mutex = self._mutex._is_owned  # type: ignore[attr-defined]
        for request in list(self._queue):
            if request.thread != own:
                request.withdrawn, request.alive = True, Lock()
        if self._leader.thread != own:
            self._leader = Request(())

    # -- one transaction ----------------------------------------------------------------------------------------

    def _commit_next(self, own: Request | None = None) -> None:
        """Commit as many queued requests as fit one transaction, or settle the flight of a stopped thread. `own`: a
        queued request of this thread, which is not done."""
        left = self._flight
        if left is not None:
            requests = [*left.requests]
        elif own is not None and len(self._queue) == 1:
            requests = [own]
        else:
            if own is not None:
                self._let_in(own)
            requests = self._take()
        if not requests:
            return
        try:
            if left is not None:
                self._settle_left(left)
            elif self.inbox is not None:
                self._commit(requests)
                self.inbox.leave(len(requests))
            elif not self._commit_shared(requests):
                self._commit(requests)
        except StreamkitError as error:
            if isinstance(error, StoreClosed):
                self.partition.mark_lost()
            flight = self._flight
            if flight is not None:
                flight.failed = error
                requests = [*flight.requests, *(request for request, _ in flight.given_up)]
            for request in requests:
                if not request.done and not request.foreign:
                    if self.partition.ended:
                        request.id = None  # no process commits it any more
                    request.fail_like(error)
                    if request.id is not None:
                        self.note(request.id, 0)
            self._flight = None
        waiting = []
        for request in requests:
            if request.turn is None or request.chosen:
                self._wake(request)
            elif request.done:
                waiting.append(request)
        # One after another: if all were woken up at once, each would fall asleep again until it gets the interpreter.
        for request, following in pairwise(waiting):
            request.following = following
        if waiting:
            self._last_woken = waiting[-1]
            wake_first(waiting[0])

    def _let_in(self, own: Request) -> None:
        """Let the callers of the last commit go on first: they may have their next requests, and one commit of all
        costs less than two. The thread of `own`, which leads, sleeps until the last one wakes it up. If it waited for
        the interpreter, each of them would wake it up.
        """
        last, self._last_woken = self._last_woken, None
        if last is None or last.abandoned or self._at_once or self.inbox is not None:
            return
        if self._haste:
            self._haste -= 1
            return
        turn = own.turn
        if turn is None:
            turn = own.turn = threading.Lock()
        turn.acquire(blocking=False)
        last.following = own
        if not last.abandoned and not turn.acquire(timeout=_LET_IN):
            self._haste = _HASTE

    def _wake(self, request: Request) -> None:
        self._chosen = self._chosen or request.chosen
        if request.done and (request.turn is not None or request.thread == 0):
            request.wake()

    def _take(self) -> list[Request]:
        """The requests at the head of the queue that fit one transaction. They stay queued until they are done."""
        waiting = list(self._queue)
        if len(waiting) == 1 and not waiting[0].done and not waiting[0].abandoned:
            return waiting
        with self._mutex:
            waiting = list(self._queue)
            for request in waiting:
                if not (request.done or request.abandoned):
                    break
                # Not popleft: the request's own thread may have removed it, and another one is the first then.
                try:  # noqa: SIM105  (suppress costs more than the code around it)
                    self._queue.remove(request)
                except ValueError:
                    pass
        taken: list[Request] = []
        size = frames = 0
        for request in waiting:
            if request.done or request.abandoned:
                continue
            for part in request.parts:
                size += part.size
            frames += len(request.parts) + (request.key is not None)
            if taken and (size > self.most_bytes or frames > _MOST_FRAMES):
                break
            taken.append(request)
        return taken

    def _commit(self, requests: list[Request]) -> None:
        """Commit `requests` together. One that depends on the outcome of a neighbour may be left in the queue."""
        self._taken = requests
        partition, inbox = self.partition, self.inbox
        if inbox is not None:
            inbox.arrive()
        looked = partition.looked
        # On a disk no number that was taken is ever free again.
        if looked is None or not partition.looks.completed or (partition.remote and not partition.is_fresh(looked)):
            partition.refresh(_segments(requests))
        # A transaction that is encoded for a number that is taken is encoded in vain.
        looks = _LOOKS if not partition.remote and sum([len(request.parts) for request in requests]) >= _WIDE else 0
        if looks:
            partition.refresh()
        alone = len(requests) == 1 and not self._submitted
        lost = 0
        again, begun = False, list(requests)
        while True:
            if again:
                again = False
                for request in requests:
                    self._wake(request)
                if self._leader.done or all(request.done for request in begun):
                    return  # the next leader goes on with the others
                requests[:] = self._take()
                alone = len(requests) == 1 and not self._submitted
            segments = _segments(requests)
            base = partition.commit_base()
            plan = Plan(partition, base, partition.ask(counted, partition.load_statuses(segments)))
            for request in requests:
                if request.withdrawn:
                    request.leave()
                elif not request.done and (alone or not request.abandoned):
                    plan.add(request)
            if plan.behind:
                replay_answers(partition, requests)
                continue
            if base.generation != partition.generation:
                continue  # the statuses are of another state
            if not plan.is_current():
                # By the known state an expectation does not hold, or there is no room; but that state may be old.
                # Look before refusing, even if the expectation can never hold: the error's facts must be true.
                partition.refresh(segments)
                continue
            if plan.unconfirmed:
                plan.refuse_unconfirmed()
            # A request that was left out depends on a neighbour: it is planned again once that is committed.
            if not plan.ready and not plan.given_up:
                return
            if inbox is not None and inbox.enter(plan, lost, len(self._queue) > len(requests)):
                again = True
                continue
            if looks and partition.refresh() != base.number:
                looks -= 1
                continue
            flight = self._prepare(plan)
            header = flight.header
            if not self._begin(flight, header.id, header.number):
                continue
            if self._settle(flight):
                self._finish(flight)
                return
            self._flight = None
            flight.clear()
            lost += 1
            self._read_winners(flight, requests, lost)
            again = inbox is not None

    def _read_winners(self, flight: Flight, requests: Sequence[Request], lost: int) -> None:
        """Read the transactions of the processes that were faster than `flight`. `lost`: the number of commits in a row
        that lost."""
        partition = self.partition
        partition.counters["conflicts"] += 1
        if lost > _LOSSES:
            raise Unavailable(
                f"space {partition.space!r}, partition {partition.partition}: {lost} commits in a row met writes of "
                "other processes; spread the writers over more partitions, or try again"
            )
        if lost % _SUSPECT == 0:
            partition.check_space()  # a later space of its name may refuse them all
        if self.inbox is None:
            partition.refresh(_segments(requests))
            return
        if lost > 6 and not partition.answers.lead.name:
            # A short sleep: posted requests may be answered meanwhile, or their process named to lead.
            partition.clock.sleep(random.random() * 0.05)
        if flight.winner is not None:
            partition.accept(flight.winner, flight.header.number, flight.looked)
        partition.catch_up()

    def _prepare(self, plan: Plan) -> Flight:
        """The transaction of the plan's requests."""
        partition, base = self.partition, plan.base
        now = partition.clock.now()
        number = base.number + 1
        timestamp = max(partition.moments.after(now), base.timestamp)
        for request in plan.ready:
            if request.id is not None:
                timestamp = max(timestamp, made_at(request.id))
        before = plan.before
        after: dict[str, SegmentRow] = {}
        results: list[dict[str, SegmentRow]] = []
        parts: list[tuple[str, int, Body]] = []
        sizes: list[tuple[int, int]] = []
        keys: list[KeyUse] = []
        answers: list[tuple[bytes, int]] = []
        count = 0
        for request in plan.ready:
            if request.id is not None:
                answers.append((request.id, len(parts)))
            elif request.void is not None:
                answers.append((request.void, VOID))
            result: dict[str, SegmentRow] = {}
            for part in request.parts:
                segment, body = part.segment, part.body
                row = after.get(segment) or before[segment]
                if body is not None:
                    first = row.last_sequence + 1
                    parts.append((segment, first, body))
                    sizes.append((row.size, part.size))
                    row = row.with_entries(number, timestamp, first, body.count, row.size + part.size)
                    after[segment] = row
                    count += body.count
                result[segment] = row
            results.append(result)
            if request.key is not None:
                given = tuple((segment, row.last_sequence) for segment, row in result.items())
                keys.append(KeyUse(request.key, request.content, given))
        header, record = encode_transaction(
            number=number,
            timestamp=timestamp,
            id=new_id(now, tag_of(partition)),
            node=self.node,
            position=base.position,
            parts=parts,
            keys=tuple(keys),
            fences=plan.new_fences,
            answers=tuple(answers) + tuple((id, VOID) for id in plan.voids),
            lead=plan.lead,
            waiting=plan.waiting,
            seed=partition.seed,
            sizes=sizes,
            size=base.size,
            control=join_controls([request.control for request in plan.ready if request.control is not None]),
        )
        key = partition.transaction_key(number)
        seed, given_up = partition.seed, plan.given_up
        return Flight(
            plan.ready, results, after, base.looked, key, record, count, seed, given_up=given_up, known=header
        )

    def _commit_shared(self, requests: Sequence[Request]) -> bool:
        """Commit requests of a partition without an inbox, if each only writes to one segment and no two to the same.
        Most do. False if they have to be planned; then nothing of them was written."""
        partition, parts, count = self.partition, [], 0
        for request in requests:
            if len(request.parts) != 1 or request.key is not None or request.fence is not None:
                return False
            (part,) = request.parts
            body = part.body
            if body is None or request.control is not None or request.withdrawn:
                return False
            parts.append(part)
            count += body.count
        base = partition.shared_base(parts) if len(parts) < _WIDE else None
        if base is None:
            return False
        for part, row in zip(parts, base[0], strict=True):
            if part.expected is not None and part.expected != row.last_sequence:
                return False
        now = partition.clock.now()
        timestamp = max(partition.moments.after(now), base[2])
        made = partition.lone.encode_shared(now, draw(BITS), self.node, timestamp, base, parts)
        if made is None:
            return False
        key, record, rows, _, trx, statuses = made
        after = {part.segment: row for part, row in zip(parts, rows, strict=True)}
        results = [{segment: row} for segment, row in after.items()]
        self._taken = requests
        partition.counters["cache_hits"] += len(parts)
        flight = Flight(requests, results, after, base[5], key, record, count, partition.seed)
        if not self._begin(flight, trx.raw_id, trx.number):
            return False
        if not self._settle(flight):
            self._flight = None
            flight.clear()
            partition.counters["conflicts"] += 1
            partition.refresh(_segments(requests))
            return False
        partition.committed_shared(base, made, parts, timestamp, count)
        self._note_length(len(record), len(parts))
        for request, result, status in zip(requests, results, statuses, strict=True):
            if not request.done:
                request.status = status
                request.succeed(result, trx, count)
        self._flight = None
        return True

    def _begin(self, flight: Flight, id: bytes, number: int) -> bool:
        """Make `flight` the transaction whose outcome is not known yet. False if a request was withdrawn: others may
        build on it, so the transaction is not written."""
        if self._submitted and not all(request.board(id, number) for request in flight.requests):
            flight.clear()
            return False
        self._flight = flight
        withdrawn = False
        for request in flight.requests:
            withdrawn = withdrawn or request.withdrawn
        if withdrawn:
            self._flight = None
            flight.clear()
            return False
        return True

    def _finish(self, flight: Flight) -> None:
        """Give the requests of a committed transaction their results. It may be stopped anywhere, and called again."""
        partition, header = self.partition, flight.header
        partition.committed(header, flight.record, flight.after)
        self._note_length(len(flight.record), len(header.frames))
        trx, count = header.trx, flight.count
        for request, result in zip(flight.requests, flight.results, strict=True):
            if not request.done:
                request.succeed(result, trx, count)
            if request.foreign:
                partition.counters["combined"] += 1
            elif request.id is not None:
                request.chosen = upkeep_owner(header) == request.id
        for request, error in flight.given_up:
            request.fail(error)
        if header.lead and header.lead not in (NOBODY, self.node):
            partition.counters["handed_over"] += 1
        self._flight = None

    def _settle_left(self, flight: Flight) -> None:
        """Settle the flight of a stopped thread: the callers of its other requests must learn the outcome."""
        if flight.failed is not None:
            raise flight.failed
        if all(request.done or request.abandoned for request in flight.requests):
            # If it is in the log, the next commit will meet it there.
            self._flight = None
        elif self._settle(flight, left=True):
            self._finish(flight)
        else:
            self._flight = None
            flight.clear()
            self.partition.refresh(())

    def _settle_alone(self, part: Part, base: LoneBase, made: Lone, error: StreamkitError) -> bool:
        """True if the transaction of `commit_alone` is committed although its first write ended with `error`."""
        partition, after, body = self.partition, {part.segment: made[2]}, part.body
        assert body is not None
        flight = Flight((Request((part,)),), (after,), after, base[5], made[0], made[1], body.count, partition.seed)
        if self._settle(flight, cause=error):
            return True
        partition.counters["conflicts"] += 1
        partition.refresh((part.segment,))
        return False

    def _settle(self, flight: Flight, *, left: bool = False, cause: StreamkitError | None = None) -> bool:
        """Write the transaction, exactly once; False if another writer won. `left`: it may have been sent already.
        `cause`: the error of its first write.

        After a lost answer, or a conflict that may come from this writer's own first try, the transaction is read back.
        Its own id means committed. Another id means not committed, now and for ever. If nothing is there, the same
        bytes are sent again.
        """
        partition = self.partition
        durable, lost = partition.durable, left
        for attempt in range(_ATTEMPTS):
            if cause is None and (attempt or not left):
                try:
                    began = perf_counter()
                    partition.backend.put(partition.key, flight.key, flight.record, NEXT, durable=durable)
                    self._at_once = perf_counter() - began < _AT_ONCE
                    return not partition.remote or self._still_counts(flight, once=not lost)
                except Reentered:
                    if not lost:
                        self._flight = None  # nothing was sent, and nothing of it may be
                        flight.clear()
                    raise
                except StreamkitError as error:
                    cause = error
            if isinstance(cause, Ambiguous):
                lost = True
            elif cause is not None and not isinstance(cause, Conflict):
                if lost:
                    raise self._unknown(flight.header) from cause
                raise cause
            try:
                value = partition.backend.get(partition.key, [flight.key])[0]
                stored = value and partition.decode_header(value.data, flight.header.number)
            except UnsupportedVersion:
                raise  # of a later release, so another process wrote it: this transaction is absent for ever
            except StreamkitError as error:
                raise self._unknown(flight.header) from error
            if stored is not None:
                if lost:
                    partition.counters["settled"] += 1
                if stored.id != flight.header.id:
                    assert value is not None
                    flight.winner = value.data
                    return False
                partition.counters["settled"] += not lost
                return self._still_counts(flight, once=False)
            if isinstance(cause, Conflict) and not lost:
                # A transaction was there and has been archived and removed since, or the service contradicts itself.
                # No write that was sent can land any more.
                return False
            if cause is not None:
                partition.clock.sleep(min(0.05 * 2**attempt, 1.0))
            cause = None
        raise self._unknown(flight.header)

    def _unknown(
        self, header: Header, cause: str = "the answer to the commit was lost and reading it back failed"
    ) -> OutcomeUnknown:
        self.note(header.id, header.number)
        transaction_id = UUID(bytes=header.id)
        return OutcomeUnknown(
            f"{self.partition.where(header.number)}: {cause}; ask store.outcome({str(transaction_id)!r})",
            transaction_id,
        )

    def _still_counts(self, flight: Flight, *, once: bool) -> bool:
        """True if the transaction in the log counts. A very late write may land on a number whose transaction has been
        packed, archived or trimmed, and removed from the log: it does not count. `once`: it was sent at most once."""
        partition, header, number = self.partition, flight.header, flight.header.number
        if not partition.remote or partition.is_fresh(flight.looked):
            return True
        sure = True
        try:
            if partition.archived_since(number):
                counts = partition.archive().has(partition.view(), header.id, number, 0)
            else:
                packed = partition.ask(lambda view: view.packs.get([number])[0])
                # A transaction that is in no pack stays in the log until it is trimmed.
                counts = number >= partition.head.floor.number
                if packed is not None:
                    counts = partition.decode_header(packed, number).id == header.id
                elif not counts:
                    # It was sent once and is there although that part of the log was removed: it came too late.
                    # Otherwise the outcome is unknown.
                    late = once and number <= partition.head.trimmed
                    sure = late and partition.backend.get(partition.key, [flight.key])[0] is not None
            if counts:
                return True
            partition.backend.delete(partition.key, [flight.key])
        except StreamkitError as error:
            raise self._unknown(header) from error
        if not sure:
            raise self._unknown(header, "the committed transaction there, this one or another, was trimmed meanwhile")
        return False

    def keep_index(self, before: Callable[[], object] | None = None) -> None:
        """Bring the index forward if it is far behind. One thread does it; the others go on. `before` is called first
        if that takes time."""
        partition = self.partition
        upkeep = partition.policy.upkeep
        if self.inbox is not None:
            if before is not None:
                before()
            self.inbox.sweep()
            lead = partition.answers.lead
            if lead.name and partition.number - lead.named_by < upkeep:
                # The leading process is busy, so one of the processes that it has answered does it.
                partition.shorten_tail()
                if not self._chosen:
                    return
                self._chosen = False
        tail = partition.tail
        behind = partition.number - tail.watermark
        due = self._bring_forward
        size, (early_count, early_bytes) = tail.bytes, _EARLY
        early = behind >= early_count and size >= early_bytes
        if behind < upkeep and size < _TAIL_BYTES and tail.frames < _TAIL_FRAMES and not early:
            turn = self._turn
            if not turn or not behind or behind % turn:
                return
            due = self._merge
        if partition.number < self._next_upkeep or self._upkeep.locked():
            return
        if before is not None:
            before()
        with self._upkeep:
            try:
                if due is not self._bring_forward or not self._is_left_to_others(tail, behind):
                    due(partition)
            except StreamkitError as error:
                # Every acknowledged entry is in the log; the index may follow later.
                self._next_upkeep = partition.number + max(1, upkeep // 4)
                self._last = None
                partition.counters["upkeep_failures"] += 1
                place, number = partition.where(partition.number), partition.number
                message = "%s: the index could not be brought forward: %s"
                warn(message, place, error, space=partition.space, transaction=number)

    def _note_length(self, size: int, frames: int) -> None:
        self._last = _ALL if self._last is None else (1, size, frames)

    def _is_left_to_others(self, tail: Tail, behind: int) -> bool:
        """True if another process on the same disk does the upkeep: two of them would do the same work.

        It is for the process whose transaction has made it due. The others wait until the tail is much longer.
        """
        partition = self.partition
        upkeep, (count, size, frames) = partition.policy.upkeep, self._last or _ALL
        if partition.remote or _length(behind - count, tail.bytes - size, tail.frames - frames, upkeep) < 1:
            return False
        length = _length(behind, tail.bytes, tail.frames, upkeep)
        known, looked = self._looked
        if known is not tail:
            looked = 0.0
        if length - looked < _LOOK and length < _PATIENCE:
            return True
        partition.read_head()
        self._looked = partition.tail, length
        return partition.tail is not tail or length < _PATIENCE

    def note(self, id: bytes, number: int) -> None:
        """Remember a transaction, or a posted request, whose outcome a caller may ask for later."""
        if len(self.unknown) >= _UNKNOWN:
            self.unknown.pop(next(iter(self.unknown)), None)
        self.unknown[id] = number

    def _new_id(self) -> bytes:
        """An id for a request that is posted."""
        return new_id(self.partition.clock.now(), tag_of(self.partition), posted=True)

    # -- lost answers -------------------------------------------------------------------------------------------

    def outcome(self, id: bytes) -> Outcome:
        """The final outcome of a transaction. For the rest see `outcome_of`."""

        def take_place() -> None:
            taker = Request(())
            taker.void = id
            try:
                self.commit(taker)
            except AccessDenied as error:
                raise OutcomeUnknown(f"its place in the log cannot be taken: {error}", UUID(bytes=id)) from error

        return outcome_of(self.partition, id, self.unknown.get(id) or None, take_place)
