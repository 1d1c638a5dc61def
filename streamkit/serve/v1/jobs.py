"""Jobs of queues."""

from __future__ import annotations

import msgspec

from ...groups.queue import job_records
from ..problems import Problem
from ..request import Request
from ..responses import Answer, json_answer
from .conditions import idempotency_key
from .groups import found_group
from .records import body_of, check_count
from .values import RecordIn
from .writing import REPLAYED, write

__all__ = ["put_jobs"]


class JobIn(RecordIn, forbid_unknown_fields=True):
    """A job, or several `jobs` of one kind. `delay` is in seconds; a higher `priority` (-100 to 100) goes first.

    Those of different keys are served in turn.
    """

    jobs: list[RecordIn] | None = None
    key: str | None = None
    delay: float = 0.0
    priority: int = 0


class JobsOut(msgspec.Struct):
    """The number of jobs that were added, in one transaction."""

    count: int
    trx: str | None


async def put_jobs(request: Request) -> Answer:
    """Add jobs to a queue, in one transaction."""
    request.query(())
    key = idempotency_key(request)
    given = await body_of(request, JobIn)
    await found_group(request)
    if given.jobs is None:
        jobs = [given.record()]
    elif type(given.json) is msgspec.Raw or type(given.text) is str or type(given.base64) is bytes:
        raise Problem("invalid-record", "the body has either `jobs`, or the fields of one job")
    else:
        jobs = [job.record() for job in given.jobs]
    check_count(request, len(jobs))
    if any(job.sequence is not None for job in jobs) or (given.jobs is not None and given.metadata):
        raise Problem("invalid-record", "a job takes no `sequence`; of several jobs each takes its own `metadata`")
    segment, records = job_records(jobs, key=given.key, delay=given.delay, priority=given.priority)
    store, name = request.store(), request.name(1)
    transaction = await write(request, store, name, ((segment, records, None),), key, None)
    out = JobsOut(len(records), None if transaction.trx is None else str(transaction.trx.id))
    return json_answer(out, 201 if records else 200, (REPLAYED,) if transaction.replayed else ())
