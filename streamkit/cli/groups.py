"""groups, group …, queue …: work that is shared and acknowledged."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from streamkit import DeliveryLost, PermanentError, Store
from streamkit.terminal import amount, visible

from .options import Json, SpaceName, note_missing, with_store
from .output import entry_line, entry_text, iso, print_line, print_note, print_result, record_line

if TYPE_CHECKING:
    from streamkit.groups import Delivery, Group, GroupStatus

__all__ = ["group", "groups", "queue"]

group = typer.Typer(help="Show a group, bring dead letters back, move it, or delete it.", no_args_is_help=True)
queue = typer.Typer(help="Put jobs into a queue, and take them out.", no_args_is_help=True)
GroupName = Annotated[str, typer.Argument(metavar="GROUP", help="The group.", show_default=False)]
QueueName = Annotated[str, typer.Argument(metavar="QUEUE", help="The queue.", show_default=False)]
Limit = Annotated[int, typer.Option("--limit", "-n", min=1, metavar="N", help="At most this many lines.")]


@with_store
def groups(opened: Store, space: SpaceName, json: Json = False) -> None:
    """List the groups of a space."""
    names = opened.get_groups(space)
    for name in names:
        print_result({"space": space, "group": name}, name, json)
    if not names:
        note_missing(opened, space)


def _group(store: Store, space: str, name: str) -> Group:
    """Open an existing group: a command that looks creates none."""
    if name not in store.get_groups(space):
        known = ", ".join(map(repr, store.get_groups(space))) or "none"
        raise PermanentError(f"the space {space!r} has no group {name!r}; it has {known}")
    return store.group(space, name)


def _status_fields(status: GroupStatus) -> dict[str, Any]:
    fields = {name: getattr(status, name) for name in ("lag", "unread", "pending", "ready", "delayed", "dead", "acked")}
    for name in ("delivered_to", "acked_to"):
        offset = getattr(status, name)
        fields[name] = None if offset is None else offset.hex()
    fields["consumers"] = [msgspec.structs.asdict(each) for each in status.consumers]
    fields["gaps"] = [msgspec.structs.asdict(each) for each in status.gaps]
    return fields


@group.command("show")
@with_store
def show(opened: Store, space: SpaceName, name: GroupName, json: Json = False) -> None:
    """Show the lag, the pending, ready, delayed and dead entries, the position, and the settings."""
    found = _group(opened, space, name)
    status = found.status()
    fields = _status_fields(status)
    settings = msgspec.structs.asdict(found.settings)
    if json:
        print_line(record_line({"space": space, "group": name, **fields, "settings": settings}))
        return
    fields["consumers"] = ", ".join(f"{each.name} ({each.pending} pending)" for each in status.consumers) or "none"
    fields["gaps"] = "; ".join(map(str, status.gaps)) or "none"
    fields["settings"] = ", ".join(f"{field} {value}" for field, value in settings.items() if value is not None)
    for field, value in fields.items():
        if value is not None:  # a queue has no position
            print_line(f"{field}: {value}")


@group.command("pending")
@with_store
def pending(
    opened: Store,
    space: SpaceName,
    name: GroupName,
    consumer: Annotated[str | None, typer.Option(metavar="NAME", help="Only deliveries of this consumer.")] = None,
    limit: Limit = 100,
    json: Json = False,
) -> None:
    """List the deliveries that consumers hold now, the oldest first.

    Example: `streamkit group pending orders billing --limit 10`
    """
    for found in _group(opened, space, name).pending(consumer, limit):
        fields = {"consumer": found.consumer, "attempt": found.attempt, "deadline": found.deadline}
        if json:
            print_line(record_line({**fields, "entry": msgspec.Raw(entry_line(found.entry))}))
        else:
            head = f"with {found.consumer}  attempt {found.attempt}  until {iso(found.deadline)}  entry: "
            print_line(head.encode() + entry_text()(found.entry))


@group.command("dead")
@with_store
def dead(opened: Store, space: SpaceName, name: GroupName, limit: Limit = 100, json: Json = False) -> None:
    """Print the dead letters, the oldest first: since when, after how many attempts, the reason, and the entry.

    An entry is its time, segment, sequence, payload and metadata.

    Example: `streamkit group dead orders billing --json`
    """
    for letter in _group(opened, space, name).dead_letters(limit):
        fields = {"reason": letter.reason, "attempt": letter.attempt, "timestamp": letter.timestamp}
        if json:
            print_line(record_line({**fields, "entry": msgspec.Raw(entry_line(letter.entry))}))
        else:
            tried = f"{letter.attempt} attempt" + "s" * (letter.attempt != 1)
            head = f"dead since {iso(letter.timestamp)}  {tried}  reason: {visible(letter.reason)}  entry: "
            print_line(head.encode() + entry_text()(letter.entry))


@group.command("redrive")
@with_store
def redrive(opened: Store, space: SpaceName, name: GroupName) -> None:
    """Bring all dead letters back.

    Example: `streamkit group redrive orders billing`
    """
    count = _group(opened, space, name).redrive()
    print_note(f"{count} brought back")


@group.command("seek")
@with_store
def seek(
    opened: Store,
    space: SpaceName,
    name: GroupName,
    offset: Annotated[str, typer.Argument(metavar="OFFSET", help="'beginning', 'end', or an offset.")],
) -> None:
    """Continue after an offset. Pending, waiting and dead entries are forgotten.

    Example: `streamkit group seek orders billing beginning`
    """
    _group(opened, space, name).seek(offset)


@group.command("rm")
@with_store
def rm(opened: Store, space: SpaceName, name: GroupName) -> None:
    """Delete a group. The entries of the space stay.

    Example: `streamkit group rm orders billing`
    """
    _group(opened, space, name).delete()


@queue.command("put")
@with_store
def put(
    opened: Store,
    name: QueueName,
    payload: Annotated[
        str | None,
        typer.Argument(metavar="PAYLOAD", help="The job. Without it, each line of standard input is one."),
    ] = None,
    key: Annotated[str | None, typer.Option(metavar="KEY", help="The key of the job. Keys are served in turn.")] = None,
    delay: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait before the job is delivered.")] = 0.0,
    priority: Annotated[int, typer.Option(min=-100, max=100, metavar="N", help="The priority. Higher ones first.")] = 0,
) -> None:
    """Add jobs to a queue. A queue that does not exist is made.

    Example: `streamkit queue put emails '{"to": "ada"}' --priority 5`
    """
    found = opened.queue(name)
    if payload is not None:
        found.put(payload.encode(), key=key, delay=delay, priority=priority)
        return
    count = 0
    while lines := sys.stdin.buffer.readlines(1 << 20):
        jobs = [line.rstrip(b"\r\n") for line in lines if line.strip()]
        found.put_many(jobs, key=key, delay=delay, priority=priority)
        count += len(jobs)
    print_note(f"{amount(count, 'job')} put")


def _has_queue(store: Store, name: str) -> bool:
    from streamkit.groups.queue import GROUP

    return GROUP in store.get_groups(name)


def _no_queue(store: Store, name: str) -> str:
    return f"the store {store.id} has no queue {name!r}"


def _delivery_line(delivery: Delivery) -> bytes:
    fields = {"receipt": delivery.receipt, "attempt": delivery.attempt, "deadline": delivery.deadline}
    return record_line({**fields, "entry": msgspec.Raw(entry_line(delivery.entry))})


@queue.command("receive")
@with_store
def receive(
    opened: Store,
    name: QueueName,
    limit: Limit = 1,
    wait: Annotated[float, typer.Option(min=0, metavar="SECONDS", help="Wait this long for the first job.")] = 0.0,
    auto_ack: Annotated[
        bool, typer.Option("--auto-ack", help="Acknowledge each job before it is shown: it comes at most once.")
    ] = False,
    json: Json = False,
) -> None:
    """Take jobs. Acknowledge each by its receipt until its deadline. Exits with 1 if no job is ready.

    A queue that does not exist is not made, unless --wait waits for its first job.

    Example: `streamkit queue receive emails --limit 10 --wait 20 --json`
    """
    if not _has_queue(opened, name):
        print_note(_no_queue(opened, name))
        if not wait:
            raise typer.Exit(1)
    deliveries = opened.queue(name).consumer("cli").receive(limit, wait, auto_ack=auto_ack)
    for delivery in deliveries:
        if json:
            print_line(_delivery_line(delivery))
        else:
            print_line(f"{delivery.receipt}  ".encode() + entry_text()(delivery.entry))
    if not deliveries:
        raise typer.Exit(1)


@queue.command("ack")
@with_store
def ack(
    opened: Store,
    name: QueueName,
    receipts: Annotated[list[str], typer.Argument(metavar="RECEIPT", help="The receipts that `receive` printed.")],
) -> None:
    """Acknowledge jobs that are done.

    Exits with 1 if a job went to another consumer meanwhile. The others are acknowledged all the same.

    Example: `streamkit queue ack emails RECEIPT RECEIPT`
    """
    lost: dict[str, DeliveryLost] = {}
    if not _has_queue(opened, name):
        raise PermanentError(_no_queue(opened, name))
    found = opened.queue(name)
    consumer = found.consumer("cli")
    for receipt in receipts:
        try:
            consumer.ack(found.group.delivery(receipt))
        except DeliveryLost as error:
            lost[receipt] = error
    if lost:
        first = next(iter(lost.values()))
        first.add_note(f"this is true for {len(lost)} of {len(receipts)} receipts: {' '.join(lost)}")
        raise first
