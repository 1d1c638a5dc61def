"""The client and the threads that the stores of one driver share."""

from __future__ import annotations

import os
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Generic, TypeVar

from streamkit.backend import Ambiguous
from streamkit.errors import MissingDependency, PermanentError, StoreClosed
from streamkit.reentry import Busy, Mutex

from .counting import Counts, Meter
from .errors import Refused, Request, Target, credentials_failed, is_elsewhere, lost, translate
from .lean import Lean
from .sdk import client_of_sdk, connect_seconds, no_client, read_seconds
from .service import find

__all__ = ["NO_DATE", "Connection", "Process", "Task"]

T = TypeVar("T")
Item = TypeVar("Item")
NO_DATE = "the service sends no Date and Last-Modified, so that no lease can be judged; leases need them"
_THREADS = 40
_WINDOW = 64 << 20
"""Bytes that are fetched before they are asked for, at most."""
_LENGTHS = {"content-length", "transfer-encoding"}
_IDLE = 15.0
"""Seconds after which a quiet connection is not trusted: services and NATs drop them, a frozen process misses it."""


class Process:
    """State that must not cross a fork."""

    def __init__(self) -> None:
        self.lock = Mutex()
        self.busy = Busy()
        self.client: Any = None
        self.pool: ThreadPoolExecutor | None = None
        self.active = 0
        self.used = time.time()
        self.counts = Counts()
        self.marks: dict[str, Any] = {}
        """The known state of each store's marker, by the store's path."""
        self.probed = False
        """True if the service was seen to honour conditions."""


class Task(Generic[T]):
    """A call on another thread."""

    def __init__(self, pool: ThreadPoolExecutor, call: Callable[..., T], *args: Any) -> None:
        self._call = call
        self._args = args
        self._pid = os.getpid()
        self._future = pool.submit(call, *args)

    def result(self) -> T:
        """Return the call's result or raise its error. StoreClosed if the connection was closed before the call
        began."""
        if self._pid != os.getpid():
            # The thread stayed in the parent.
            return self._call(*self._args)
        try:
            return self._future.result()
        except CancelledError:
            raise StoreClosed("the store was closed while it was being read; open it again") from None

    def cancel(self) -> None:
        self._future.cancel()


class Connection:
    """A connection to a bucket. Each process makes its own client at the first call. Safe to share between threads."""

    def __init__(self, target: Target, timeout: float) -> None:
        self.target = target
        self._timeout = timeout
        self._closed = False
        self._processes = {os.getpid(): Process()}

    @property
    def process(self) -> Process:
        pid = os.getpid()
        found = self._processes.get(pid)
        # Without a lock: a thread that the fork left behind could hold it for ever.
        return self._processes.setdefault(pid, Process()) if found is None else found

    def check_open(self) -> None:
        if self._closed:
            raise StoreClosed(f"the connection to s3://{self.target.bucket} was closed; connect again")

    def call(self, meter: Meter, operation: str, request: Request, **parameters: Any) -> dict[str, Any]:
        """The client's answer; a body in it was read to its end. Errors are those of the seam."""
        process = self.process
        client = None
        while True:
            try:
                with process.busy(), self._using(process, meter) as client:
                    answer: dict[str, Any] = getattr(client, operation)(Bucket=self.target.bucket, **parameters)
                    if not isinstance(answer.get("Body", b""), bytes):
                        with answer["Body"] as body:
                            answer["Body"] = body.read()
                metadata = answer["ResponseMetadata"]
                if metadata["HTTPStatusCode"] == 204 or _LENGTHS & metadata["HTTPHeaders"].keys():
                    return answer
                # To the SDK, a connection that is closed in the middle of the headers is an answer without a body.
                failure: Exception = lost(request, self.target, "cut in the headers")
            except Exception as error:
                if isinstance(error, Refused) and is_elsewhere(error):
                    # The SDK looks for the bucket's region, and sends the request there.
                    self._replace(process, client, client_of_sdk)
                    continue
                failure = translate(error, request, self.target)
                if client is not None and credentials_failed(error):
                    # The next call asks the chain again: an expired session may have been renewed.
                    self._replace(process, client, None)
            # Out here, so that the foreign error is not even its context.
            raise failure

    def _replace(self, process: Process, client: Any, make: Callable[[Target, float, Counts], Any] | None) -> None:
        with process.lock():
            if process.client is client:
                process.client = None if make is None else make(self.target, self._timeout, process.counts)

    @contextmanager
    def _using(self, process: Process, meter: Meter) -> Iterator[Any]:
        with process.lock():
            self.check_open()
            if process.client is None:
                process.client = _client(self.target, self._timeout, process.counts)
            elif not process.active and not -1 < time.time() - process.used < _IDLE:
                process.client.close()
            client = process.client
            process.active += 1
        process.counts.thread.meter = meter
        try:
            yield client
        finally:
            with process.lock():
                process.active -= 1
                process.used = time.time()

    def now(self) -> float:
        """The service's time, in seconds since the epoch, at the last answer that this thread had."""
        from email.utils import parsedate_to_datetime

        try:
            return parsedate_to_datetime(self.process.counts.thread.date).timestamp()
        except (AttributeError, ValueError):
            raise PermanentError(NO_DATE) from None

    def task(self, call: Callable[..., T], *args: Any) -> Task[T]:
        """Start a call on one of the shared threads. It must not wait for another task."""
        process = self.process
        with process.busy(), process.lock():
            self.check_open()
            if process.pool is None:
                process.pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="streamkit-s3")
            return Task(process.pool, call, *args)

    def together(self, calls: Sequence[Callable[[], T]]) -> list[T]:
        """Make the calls at the same time and return their results. All are made before an error is raised: Ambiguous
        if any is."""
        if not calls:
            return []
        # The first on this thread, while the others make theirs.
        tasks = [self.task(call) for call in calls[1:]]
        results: list[T] = []
        failures: list[Exception] = []
        for outcome in (calls[0], *(task.result for task in tasks)):
            try:
                results.append(outcome())
            except Exception as error:
                failures.append(error)
        for failure in failures:
            if isinstance(failure, Ambiguous):
                raise failure  # a write that may still be applied is not hidden by one that will not be
        if failures:
            raise failures[0]
        return results

    def each(
        self, call: Callable[[Item], T], items: Iterable[Item], size: Callable[[Item], int] = lambda item: 0
    ) -> Generator[T]:
        """call(item) for each, in order, as many at once as there are threads and as their sizes allow."""
        window: deque[tuple[Task[T], int]] = deque()
        held = 0
        source = iter(items)
        waiting = next(source, None)
        try:
            while waiting is not None or window:
                while waiting is not None and len(window) < _THREADS:
                    weight = size(waiting)
                    if window and held + weight > _WINDOW:
                        break
                    window.append((self.task(call, waiting), weight))
                    held += weight
                    waiting = next(source, None)
                task, weight = window[0]
                found = task.result()
                window.popleft()
                held -= weight
                yield found
        finally:
            for task, _ in window:
                task.cancel()

    def close(self) -> None:
        self._closed = True
        process = self.process
        with process.lock():
            pool, process.pool = process.pool, None
            client, process.client = process.client, None
        if pool is not None:
            pool.shutdown(wait=False, cancel_futures=True)
        if client is not None:
            client.close()


def _client(target: Target, timeout: float, counts: Counts) -> Any:
    """The lean client, or boto3's where only that knows how to reach the bucket."""
    try:
        service = find(target)
        if service is not None:
            return Lean(service, counts, connect=connect_seconds(timeout), read=read_seconds(timeout))
    except ImportError as error:
        raise MissingDependency(
            f"an s3:// URL needs boto3 ({error.name} is missing): pip install 'streamkit-store[s3]'"
        ) from None
    except (OSError, ValueError) as error:
        problem = type(error).__name__
    else:
        return client_of_sdk(target, timeout, counts)
    raise no_client(problem)
