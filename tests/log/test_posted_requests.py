"""A posted request, while its process dies, sleeps, gives up or is refused, and so does who commits it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from random import Random
from typing import Any

import pytest

from harness.combining import combine, posting
from harness.deep_search import found_in
from harness.history import requests_in
from harness.posted import Hooks, Shared, inbox_of, partition_of
from streamkit import Record, Retention, Store
from streamkit.errors import OutcomeUnknown, SequenceMismatch, SpaceFull, StreamkitError, Unavailable
from streamkit.index.upkeep import bring_forward
from streamkit.log import plan as log_plan
from streamkit.log.policy import NEVER
from streamkit.log.record_format import encode_body
from streamkit.log.request import Part, Request
from streamkit.log.rows import Lead
from streamkit.testing import SURVIVABLE, Crash, Fault, FaultyDriver, Injector, Plan


@pytest.fixture(autouse=True)
def _posting() -> Iterator[None]:
    with posting():
        yield


@pytest.fixture
def shared() -> Shared:
    return Shared()


def once(hooks: Hooks, name: str, act: Callable[[], None]) -> None:
    """Call `act` at the next such call only."""

    def hook() -> None:
        setattr(hooks, name, None)
        act()

    setattr(hooks, name, hook)


def begun(shared: Shared, **more: Any) -> tuple[Store, Hooks, Store]:
    """Return (poster, its hooks, another process); the other one leads."""
    hooks = Hooks()
    poster, other = shared.process(hooks), shared.process()
    other.create_space("s", **more)
    shared.write(poster, "begin poster")
    shared.write(other, "begin other")
    partition_of(poster).refresh()  # it knows that it does not lead
    return poster, hooks, other


def faulty_process(shared: Shared, hooks: Hooks | None = None) -> tuple[Store, Injector]:
    """A process, and how its storage's calls are made to fail."""
    made: list[FaultyDriver] = []

    def around(driver: Any) -> Any:
        made.append(FaultyDriver(driver, Plan()))
        return made[0]

    store = shared.process(hooks, around)
    return store, made[0].faults


def faulty_poster(shared: Shared, other: Store, hooks: Hooks | None = None) -> tuple[Store, Injector]:
    """The same of one that knows that `other` leads."""
    poster, faults = faulty_process(shared, hooks)
    shared.write(poster, "first")
    shared.write(other, "leads")
    partition_of(poster).refresh()
    return poster, faults


# -- the poster ---------------------------------------------------------------------------------------------------


def test_what_a_dead_process_has_posted_is_committed_once_and_can_be_asked_about(shared: Shared) -> None:
    _, _, other = begun(shared)
    hooks = Hooks()
    poster, _ = faulty_poster(shared, other, hooks)

    def die() -> None:
        raise Crash

    once(hooks, "posted", die)
    with pytest.raises(Crash):
        shared.write(poster, "a", b"left")
    assert shared.payloads("a") == []
    combine(other, "s", 0)
    combine(shared.process(), "s", 0)
    assert shared.payloads("a") == [b"left"]


def unreachable_after_posting(shared: Shared, other: Store) -> OutcomeUnknown:
    """The error of a process whose storage is gone after it has posted a request."""
    hooks = Hooks()
    poster, faults = faulty_poster(shared, other, hooks)
    calls = len(faults.trace)

    def cut() -> None:
        faults.plan = Plan.at(calls, Fault.UNAVAILABLE, times=1 << 30)

    once(hooks, "posted", cut)
    with pytest.raises(OutcomeUnknown) as told:
        shared.write(poster, "a", b"left")
    assert poster.outcome(told.value.transaction_id) == "unknown"
    return told.value


def test_the_outcome_of_a_posted_request_is_committed_if_it_was(shared: Shared) -> None:
    _, _, other = begun(shared)
    told = unreachable_after_posting(shared, other)
    combine(other, "s", 0)
    assert shared.process().outcome(told.transaction_id) == "committed"
    assert other.outcome(told.transaction_id) == "committed"
    assert shared.payloads("a") == [b"left"]


def test_a_posted_request_that_is_said_to_be_absent_is_never_committed(shared: Shared) -> None:
    _, _, other = begun(shared)
    told = unreachable_after_posting(shared, other)
    assert shared.letters()
    assert shared.process().outcome(told.transaction_id) == "absent"
    combine(other, "s", 0)
    combine(shared.process(), "s", 0)
    assert shared.payloads("a") == []
    assert other.outcome(told.transaction_id) == "absent"


@pytest.mark.parametrize("combined", [True, False])
@pytest.mark.parametrize("transactions", [3, 140, 300])
def test_a_poster_that_slept_is_told_what_it_was_given(shared: Shared, combined: bool, transactions: int) -> None:
    """The answer is found, whatever was written, indexed and packed meanwhile."""
    poster, hooks, other = begun(shared)
    shared.write(other, "a", b"before")

    def meanwhile() -> None:
        if combined:
            combine(other, "s", 0)
        for turn in range(transactions):
            shared.write(direct, f"{turn}")
        direct.maintain()

    with posting(1 << 60):
        direct = shared.process()
        shared.write(direct, "begin direct")
    once(hooks, "posted", meanwhile)
    status = shared.write(poster, "a", b"posted", expected_sequence=1)
    assert shared.payloads("a") == [b"before", b"posted"]
    entry = shared.process().peek("s", "a")
    assert (status.first_sequence, status.last_sequence) == (1, 2)
    assert (status.last_timestamp, status.trx) == (entry.timestamp, entry.trx)
    assert list(shared.process().consume_space("s", offset=status.space_offset)) == [
        entry for entry in shared.process().consume_space("s") if entry.trx.number > status.trx.number
    ]


def test_what_is_withdrawn_while_it_is_posted_is_not_posted(shared: Shared) -> None:
    """The caller did not get an id, and its error says that nothing was written."""
    poster, _, other = begun(shared)

    class Withdrawn(Request):
        abandoned = False

        def board(self, id: bytes, number: int) -> bool:
            self.withdrawn = True
            return True

    space = poster._handle.look_up("s")[0]
    assert space is not None
    request = Withdrawn([Part("a", encode_body([b"withdrawn"], None), 9, None)])
    shared.write(other, "leads")
    space.committers[0].submit(request)
    space.committers[0].drive(lambda: None)
    assert all(b"withdrawn" not in letter for letter in shared.letters())
    combine(other, "s", 0)
    assert shared.payloads("a") == []


def test_what_was_posted_and_does_not_fit_is_refused_only_if_nobody_commits_it_later(shared: Shared) -> None:
    """The request is still in the inbox, and there may be room again."""
    poster, hooks, other = begun(shared)

    def fill() -> None:
        other.set_retention("s", Retention(max_entries=2, per="space", when_full="reject"))

    once(hooks, "posted", fill)
    with pytest.raises(SpaceFull):
        shared.write(poster, "a", b"refused")
    assert shared.letters()
    other.set_retention("s", Retention())
    combine(other, "s", 0)
    combine(shared.process(), "s", 0)
    assert shared.payloads("a") == []
    shared.write(poster, "a", b"accepted")
    assert shared.payloads("a") == [b"accepted"]


def test_a_poster_sees_for_itself_that_its_expectation_does_not_hold(shared: Shared) -> None:
    """No process commits a request after its caller got the refusal."""
    poster, hooks, other = begun(shared)
    with posting(1 << 60):
        direct = shared.process()
        shared.write(direct, "begin direct")
    once(hooks, "posted", lambda: shared.write(direct, "a", b"faster"))
    with pytest.raises(SequenceMismatch) as told:
        shared.write(poster, "a", b"posted", expected_sequence=0)
    assert (told.value.expected, told.value.actual) == (0, 1)
    combine(other, "s", 0)
    combine(shared.process(), "s", 0)
    assert shared.payloads("a") == [b"faster"]


def behind(shared: Shared) -> tuple[Store, Hooks]:
    """A poster that knows the segment "a" at 1, where it is at 4."""
    poster, hooks, other = begun(shared)
    shared.write(other, "a")
    assert poster.segment_status("s", "a").last_sequence == 1
    for _ in range(3):
        shared.write(other, "a")
    return poster, hooks


def test_a_poster_that_is_refused_is_told_where_the_segment_is_by_now(shared: Shared) -> None:
    """The position is the present one, and not that of an earlier caller."""
    poster, _ = behind(shared)
    with pytest.raises(SequenceMismatch) as told:
        shared.write(poster, "a", expected_sequence=1)
    assert (told.value.expected, told.value.actual) == (1, 4)


def test_what_comes_while_its_neighbour_is_posted_is_not_judged_by_what_was_known_before(shared: Shared) -> None:
    poster, hooks = behind(shared)

    class Waiting(Request):
        abandoned = False

    known = poster._handle.look_up("s")[0]
    assert known is not None
    committer = known.committers[0]
    late = Waiting([Part("a", encode_body([b"late"], None), 4, 4)])
    once(hooks, "posted", lambda: committer.submit(late))
    shared.write(poster, "b", b"early")
    while not late.done:
        committer.drive(lambda: None)
    assert late.error is None
    assert shared.payloads("a")[4:] == [b"late"]


def test_what_became_of_many_requests_while_nobody_listened_is_read_once_for_all(
    shared: Shared, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Waiting(Request):
        abandoned = False

    poster, hooks, other = begun(shared)
    known = poster._handle.look_up("s")[0]
    assert known is not None
    committer = known.committers[0]
    waiting = [Waiting([Part(f"w{at}", encode_body([b"posted"], None), 6, None)]) for at in range(16)]
    before: list[int] = []

    def asked() -> int:
        return requests_in(poster.statistics())

    def go_on() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(log_plan.Plan, "add_posted", lambda plan, requests: True)
            for _ in range(100):
                shared.write(other, "a", Random(1).randbytes(20_000))
        bring_forward(partition_of(other))
        partition_of(poster).read_head()
        before.append(asked())

    once(hooks, "posted", go_on)
    for request in waiting:
        committer.submit(request)
    while not all(request.done for request in waiting):
        committer.drive(lambda: None)
    assert [request.error for request in waiting] == [None] * 16
    assert [shared.payloads(f"w{at}") for at in range(16)] == [[b"posted"]] * 16
    assert asked() - before[0] < 50


def test_an_answer_that_is_lost_or_late_commits_nothing_twice(shared: Shared) -> None:
    """The letter is sent again after it was settled and removed."""
    poster, hooks, other = begun(shared)
    backend = shared.driver().open(shared.id)
    inbox = next(name for name in backend._service.stores[shared.id] if name.endswith(b"INB"))
    letters = []

    def commit() -> None:
        letters.extend(backend.scan(inbox, b"", b"\xff" * 300))
        combine(other, "s", 0)

    once(hooks, "posted", commit)
    shared.write(poster, "a", b"once")
    other.maintain()
    assert letters
    for letter in letters:
        backend.put(inbox, letter.key, letter.data)
    combine(other, "s", 0)
    combine(shared.process(), "s", 0)
    for _ in range(3):
        shared.write(other, "b")
    assert shared.payloads("a") == [b"once"]


def test_two_that_are_committed_together_are_each_told_their_own(shared: Shared) -> None:
    one, hooks, other = begun(shared)
    seconds = Hooks()
    two = shared.process(seconds)
    shared.write(other, "leads")
    statuses: list[Any] = []

    def post_another() -> None:
        once(seconds, "posted", lambda: combine(other, "s", 0))
        with two.transaction("s") as trx:
            trx.produce("b", [Record(b"2"), Record(b"2")])
            trx.produce("a", [Record(b"2")])
        statuses.append(trx.statuses)

    once(hooks, "posted", post_another)
    with one.transaction("s") as trx:
        trx.produce("a", [Record(b"1"), Record(b"1"), Record(b"1")])
        trx.produce("c", [Record(b"1")])
    first, second = trx.statuses, statuses[0]
    assert (first["a"].trx, first["a"].trx) == (second["a"].trx, second["b"].trx)
    assert partition_of(other).counters["combined"] == 2
    payloads = shared.payloads("a")
    given = {b"1": first["a"].last_sequence, b"2": second["a"].last_sequence}
    assert {payloads[last - 1]: last for last in given.values()} == given
    assert sorted(given.values())[1] == 4
    assert (first["a"].first_sequence, first["c"].last_sequence, second["b"].last_sequence) == (1, 1, 2)
    entries = list(shared.process().consume_space("s", offset=first["a"].space_offset))
    assert [entry for entry in entries if entry.segment in ("a", "b", "c")] == []


def test_one_of_a_letter_that_its_process_leads_itself_is_not_committed_twice(shared: Shared) -> None:
    """The other one of the letter was withdrawn when it was posted: it may be committed, once."""
    poster, hooks, _ = begun(shared)

    class Waiting(Request):
        abandoned = False

    space = poster._handle.look_up("s")[0]
    assert space is not None
    committer = space.committers[0]
    stays, goes = (Waiting([Part("a", encode_body([payload], None), 5, None)]) for payload in (b"stays", b"goes!"))
    once(hooks, "posted", lambda: setattr(goes, "withdrawn", True))
    once(hooks, "committing", lambda: shared.write(direct, "b"))
    with posting(1 << 60):
        direct = shared.process()
        shared.write(direct, "begin direct")
    committer.submit(goes)
    committer.submit(stays)
    partition_of(poster).answers.lead = Lead(b"another")
    committer.drive(lambda: None)
    committer.drive(lambda: None)
    combine(shared.process(), "s", 0)
    assert stays.done
    assert shared.payloads("a").count(b"stays") == 1
    assert shared.payloads("a").count(b"goes!") <= 1


def test_a_letter_that_could_not_be_sent_is_no_unknown_outcome(shared: Shared) -> None:
    _, _, other = begun(shared)
    poster, faults = faulty_poster(shared, other)
    puts = sum(call.kind == "put" for call in faults.trace)
    faults.plan = Plan.at(puts, Fault.UNAVAILABLE, kind="put", times=1 << 30)
    with pytest.raises(Unavailable):
        shared.write(poster, "a", b"not sent")
    faults.plan = Plan()
    assert all(b"not sent" not in letter for letter in shared.letters())
    shared.write(poster, "a", b"sent")
    assert shared.payloads("a") == [b"sent"]


def test_large_payloads_are_not_posted_and_the_lead_is_asked_for(shared: Shared) -> None:
    poster, hooks, other = begun(shared)
    sizes = []

    def note() -> None:
        sizes.append(sum(map(len, shared.letters())))
        combine(other, "s", 0)

    once(hooks, "posted", note)
    status = shared.write(poster, "a", bytes(range(256)) * 1024)
    assert status.last_sequence == 1
    assert max(sizes) < 2000
    assert partition_of(other).counters["handed_over"] == 1
    assert len(shared.payloads("a")) == 1


def test_a_bid_that_was_passed_over_is_made_again(shared: Shared) -> None:
    poster, hooks, other = begun(shared)
    inbox = inbox_of(poster)
    assert inbox is not None
    bids = []

    def note() -> None:
        bids.append(inbox._candidacy)
        if len(bids) > 1:
            hooks.posted = None
        partition = partition_of(other)
        with posting(1 << 60):
            for turn in range(130):
                partition.answers.lead = Lead()
                shared.write(direct, f"{turn}")

    with posting(1 << 60):
        direct = shared.process()
        shared.write(direct, "begin direct")
    hooks.posted = note
    shared.write(other, "leads")
    inbox._candidacy, inbox._candidate_since = b"old", -1000
    shared.write(poster, "a", b"x" * 200_000)
    assert len(shared.payloads("a")) == 1
    assert bids


# -- who commits it -----------------------------------------------------------------------------------------------


def test_a_combiner_that_stops_anywhere_loses_and_doubles_nothing(covered: Callable[[str, int], None]) -> None:
    count = number = 0
    crashed = True
    while crashed:
        crashed = False
        for fault in (Fault.CRASH_BEFORE, Fault.CRASH_AFTER):
            shared = Shared()
            poster, hooks, _ = begun(shared)
            dies, faults = faulty_process(shared)
            shared.write(dies, "leads")
            faults.plan = Plan.at(len(faults.trace) + number, fault)

            def lead(dies: Store = dies) -> None:
                nonlocal crashed
                try:
                    combine(dies, "s", 0)
                    shared.write(dies, "after")  # noqa: B023
                except Crash:
                    crashed = True

            once(hooks, "posted", lead)
            with poster.transaction("s", idempotency_key="k") as trx:
                trx.produce("a", [Record(b"1"), Record(b"2")], expected_sequence=0)
                trx.produce("b", [Record(b"3")])
            assert [trx.statuses[name].last_sequence for name in "ab"] == [2, 1]
            assert (shared.payloads("a"), shared.payloads("b")) == ([b"1", b"2"], [b"3"])
            entry = shared.process().peek("s", "b")
            assert trx.statuses["b"].trx == entry.trx
            assert poster.verify("s").ok
            count += 1
        number += 1
    assert count > 8
    covered("calls at which a combiner dies", count)


def test_a_combiner_that_slept_commits_nothing_again(shared: Shared) -> None:
    """A process has read the inbox, and another one was faster."""
    poster, hooks, other = begun(shared)
    frozen = Hooks()
    sleeper = shared.process(frozen)
    shared.write(sleeper, "leads")

    def sleep() -> None:
        once(frozen, "committing", lambda: combine(other, "s", 0))
        combine(sleeper, "s", 0)

    once(hooks, "posted", sleep)
    status = shared.write(poster, "a", b"once")
    shared.write(sleeper, "after")
    assert shared.payloads("a") == [b"once"]
    assert status.last_sequence == 1


def test_what_who_leads_has_to_skip_is_posted_again(shared: Shared) -> None:
    """A new process finds a message, cannot know whether it is settled, and is always faster than the poster."""
    poster, hooks, _ = begun(shared)
    leads: list[Store] = []

    def begin_another() -> None:
        with posting(1 << 60):
            direct = shared.process()
            for turn in range(40):
                shared.write(direct, f"{turn}")
            direct.maintain()
        leads.append(shared.process())
        shared.write(leads[0], "leads")
        hooks.looking = hooks.committing = lambda: combine(leads[0], "s", 0)

    once(hooks, "posted", begin_another)
    number = shared.write(poster, "a", b"passed by").trx.number
    assert number < 42 + 30, number
    assert shared.payloads("a") == [b"passed by"]


def test_who_has_lost_soon_looks_whether_others_have_posted(shared: Shared) -> None:
    """No process leads yet. A process that meets no other one looks after 64 transactions and a second."""
    hooks, posted = Hooks(), Hooks()
    with posting(2):
        busy, other = shared.process(hooks), shared.process()
        other.create_space("s")
        shared.write(busy, "begin busy")
        shared.write(other, "begin other")
        shared.write(busy, "b")

        def die() -> None:
            raise Crash

        once(posted, "posted", die)
        with posting(), pytest.raises(Crash):
            shared.write(shared.process(posted), "a", b"left")
        once(hooks, "committing", lambda: shared.write(other, "c"))
        for _ in range(6):
            shared.write(busy, "b")
        assert busy.statistics().conflicts
        assert shared.payloads("a") == [b"left"]


def test_a_combiner_whose_transaction_fails_takes_the_requests_along_with_the_next(shared: Shared) -> None:
    poster, hooks, _ = begun(shared)
    leader, faults = faulty_process(shared)
    shared.write(leader, "leads")

    def fail_once() -> None:
        puts = sum(call.kind == "put" for call in faults.trace)
        faults.plan = Plan.at(puts, Fault.UNAVAILABLE, kind="put", times=100)
        with suppress(StreamkitError):
            combine(leader, "s", 0)
        faults.plan = Plan()
        combine(leader, "s", 0)
        assert shared.payloads("a") == [b"once"]

    once(hooks, "posted", fail_once)
    shared.write(poster, "a", b"once")
    assert shared.payloads("a") == [b"once"]
    assert partition_of(leader).counters["combined"] == 1


def test_each_partition_has_an_inbox_and_all_is_counted(shared: Shared) -> None:
    poster, hooks, other = begun(shared, partitions=3)
    for turn in range(12):
        number = poster._handle.look_up("s")[0].partition(f"{turn}").partition  # type: ignore[union-attr]
        shared.write(other, f"{turn}", b"before")
        once(hooks, "posted", lambda number=number: combine(other, "s", number))  # type: ignore[misc]
        status = shared.write(poster, f"{turn}", b"after", expected_sequence=1)
        assert status.last_sequence == 2
        assert shared.payloads(f"{turn}") == [b"before", b"after"]
    posted, combined = poster.statistics(), other.statistics()
    assert posted.posted >= 12
    assert 0 < combined.combined <= posted.posted


_MENU = (*SURVIVABLE, Fault.CRASH_BEFORE, Fault.CRASH_AFTER)


@pytest.mark.parametrize("combined", [True, False])
def test_what_a_poster_is_told_is_true_whatever_happens_at_any_call(
    covered: Callable[[str, int], None], combined: bool
) -> None:
    """Each caller gets a result, an error that says that nothing was written, or one whose outcome can be asked for."""
    count = number = 0
    reached = True
    while reached:
        reached = False
        for fault in _MENU:
            shared = Shared()
            _, _, other = begun(shared)
            hooks = Hooks()
            poster, faults = faulty_poster(shared, other, hooks)
            before = len(faults.trace)
            # Not only for a moment: what is tried again fails again.
            times = 30 if fault in (Fault.UNAVAILABLE, Fault.LOST_REQUEST, Fault.LOST_ANSWER) else 1
            faults.plan = Plan.at(before + number, fault, times=times, delay=2 if fault is Fault.LATE else None)
            once(hooks, "posted", lambda other=other: combine(other, "s", 0) if combined else None)  # type: ignore[misc]
            told: object
            try:
                told = shared.write(poster, "a", b"posted", expected_sequence=0)
            except (StreamkitError, Crash) as error:
                told = error
            reached = reached or len(faults.trace) - before > number
            faults.plan = Plan()
            if isinstance(told, OutcomeUnknown):
                outcome = shared.process().outcome(told.transaction_id)
            combine(other, "s", 0)
            combine(shared.process(), "s", 0)
            shared.write(other, "b")
            found = shared.payloads("a")
            if isinstance(told, OutcomeUnknown):
                assert (outcome, found) in (("committed", [b"posted"]), ("absent", [])), fault
            elif isinstance(told, StreamkitError):
                assert found == [], (fault, told)
            elif isinstance(told, Crash):
                assert found in ([], [b"posted"])
            else:
                assert found == [b"posted"]
                assert told.trx == shared.process().peek("s", "a").trx  # type: ignore[attr-defined]
            count += 1
        number += 1
    assert count > 25
    covered("faults at calls of a poster", count)


# -- the log ------------------------------------------------------------------------------------------------------


def test_a_process_that_lost_catches_up_with_a_log_that_goes_on_as_fast_as_it_reads(shared: Shared) -> None:
    with posting(2):
        hooks = Hooks()
        late, fast = shared.process(hooks), shared.process()
        shared.write(late, "a")
        shared.write(fast, "b")
        looks = 0

        def go_on() -> None:
            nonlocal looks
            looks += 1
            assert looks < 500, "it reads for ever"
            shared.write(fast, "b")

        hooks.looking = go_on
        shared.write(late, "a")
    assert len(shared.payloads("a")) == 2


def test_a_process_that_is_far_behind_reads_on_before_it_competes_again(shared: Shared) -> None:
    """A writer goes on although old transactions name a lead, and the next number is taken as well."""
    _, _, other = begun(shared)
    with posting(2):
        late = shared.process()
        shared.write(late, "a")
    shared.write(other, "b")
    inbox_of(other)._empty = -1000
    partition = partition_of(other)
    for _ in range(60):
        known = other._handle.look_up("s")[0]
        assert known is not None
        partition.answers.lead = Lead(known.committers[0].node, 5, partition.number, shared.clock.now())
        shared.write(other, "b")
    assert partition.answers.lead.named_by == partition.number
    shared.clock.sleep(3)
    shared.write(late, "a")
    assert late.statistics().conflicts < 4


def test_the_index_follows_where_a_lead_is_named_that_nobody_takes(shared: Shared) -> None:
    """Each write has its own process, as in a function that is called now and then."""
    poster, hooks, other = begun(shared)
    once(hooks, "posted", lambda: combine(other, "s", 0))
    shared.write(poster, "a")
    assert partition_of(other).answers.lead.name
    with posting(2):
        for turn in range(70):
            shared.clock.sleep(60)
            last = shared.process()
            shared.write(last, f"{turn}")
    partition = partition_of(last)
    assert partition.number - partition.watermark < 50


# -- what is left in the inbox ------------------------------------------------------------------------------------


def leave_letters(shared: Shared, secret: bytes) -> Store:
    """Settled ones, and one that no transaction answers, as its key was used."""
    poster, hooks, other = begun(shared)
    for turn in range(3):
        once(hooks, "posted", lambda: combine(other, "s", 0))
        shared.write(poster, "user", secret + bytes([turn]), idempotency_key=f"{turn}")
    once(hooks, "posted", lambda: shared.write(other, "user", secret, idempotency_key="k"))
    shared.write(poster, "user", secret, idempotency_key="k")
    once(hooks, "posted", lambda: combine(other, "s", 0))
    shared.write(poster, "kept", b"kept" + secret[::-1])
    return other


def test_letters_with_what_was_erased_are_gone(shared: Shared) -> None:
    secret = b"a secret of user seventeen"
    other = leave_letters(shared, secret)
    assert any(secret in letter for letter in shared.letters())
    other.erase("s", "user")
    assert found_in(shared.stored(), secret) == []
    assert found_in(shared.stored(), secret[::-1])


@pytest.mark.parametrize("by", [{"segment": "user"}, {"segment": "us*"}, {"metadata": {"subject": "17"}}], ids=str)
@pytest.mark.parametrize("size", [10, 5000])
def test_the_request_of_a_killed_process_is_not_committed_after_an_erasure(
    shared: Shared, by: dict[str, Any], size: int
) -> None:
    """Nothing of it was committed before, so no entry names its segment."""
    poster, hooks, other = begun(shared)
    secret = b"a secret of user seventeen"

    def kill() -> None:
        raise Crash("killed")

    for segment, payload, subject in (("user", secret + bytes(size), "17"), ("stays", b"stays", "18")):
        once(hooks, "posted", kill)
        with pytest.raises(Crash):
            poster.produce("s", segment, [Record(payload, {"subject": subject})])
    other.erase("s", **by)
    assert found_in(shared.stored(), secret) == []
    combine(other, "s", 0)
    assert shared.payloads("user") == []
    assert shared.payloads("stays") == [b"stays"]


def test_upkeep_removes_letters_that_are_settled_and_those_that_are_too_old(shared: Shared) -> None:
    other = leave_letters(shared, b"a secret of user seventeen")
    assert len(shared.letters()) >= 3
    open_ones = len(shared.letters())
    shared.process().maintain()
    assert len(shared.letters()) < open_ones
    with posting(1 << 60):
        direct = shared.process()
        for turn in range(140):
            shared.write(direct, f"{turn}")
        direct.maintain()
    assert shared.letters() == []
    shared.write(other, "goes on")


def test_a_letter_that_is_still_open_stays(shared: Shared) -> None:
    poster, hooks, other = begun(shared)

    def clean() -> None:
        other.maintain()
        other.erase("s", "leads")
        combine(other, "s", 0)
        assert shared.payloads("a") == [b"open"]

    shared.write(other, "leads")
    once(hooks, "posted", clean)
    shared.write(poster, "a", b"open")
    assert shared.payloads("a") == [b"open"]


def test_a_request_whose_letter_was_removed_is_committed_by_its_own_process(shared: Shared) -> None:
    poster, hooks, other = begun(shared)
    shared.write(other, "a", b"erased")
    once(hooks, "posted", lambda: other.erase("s", "a") and None)
    status = shared.write(poster, "a", b"stays")
    assert status.last_sequence == 2
    assert shared.payloads("a") == [b"stays"]


def test_a_space_that_is_deleted_has_no_inbox_any_more(shared: Shared) -> None:
    other = leave_letters(shared, b"a secret of user seventeen")
    assert shared.letters()
    other.delete_space("s")
    assert shared.letters() == []


# -- without ------------------------------------------------------------------------------------------------------


def test_a_process_without_an_inbox_writes_among_those_with_one_and_asks_for_none(shared: Shared) -> None:
    _, _, other = begun(shared)
    faulty: list[FaultyDriver] = []

    def around(driver: Any) -> Any:
        faulty.append(FaultyDriver(driver, Plan()))
        return faulty[0]

    with posting(NEVER):
        alone = shared.process(None, around)
        for turn in range(200):
            if turn % 7 == 0:
                shared.write(other, "b", b"other")
            assert shared.write(alone, "a", b"%d" % turn).last_sequence == turn + 1
            shared.clock.sleep(1)
    assert [call for call in faulty[0].faults.trace if "INB" in call.what] == []
    assert shared.payloads("a") == [b"%d" % turn for turn in range(200)]
    partition = partition_of(alone)
    assert partition.number - partition.watermark < 50


def test_an_outcome_is_unknown_where_the_log_was_trimmed(shared: Shared) -> None:
    """Nothing is damaged, and nothing is said that may be wrong."""
    _, _, other = begun(shared)
    told = unreachable_after_posting(shared, other)
    combine(other, "s", 0)
    known = shared.write(other, "b")
    for turn in range(100):
        shared.write(other, f"{turn}")
    other.trim("s", keep_entries=10)
    other.maintain()
    shared.clock.sleep(1e6)
    other.maintain()
    last = shared.write(other, "c")
    for store in (other, shared.process()):
        assert store.outcome(told.transaction_id) == "unknown"
        assert store.outcome(known.trx.id) == "unknown"
        assert store.outcome(last.trx.id) == "committed"
