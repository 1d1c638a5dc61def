"""verify, repair, maintain: the checks and the upkeep of a store."""

from __future__ import annotations

import shlex
from contextlib import ExitStack
from typing import Annotated

import msgspec
import typer

from streamkit import Store, StreamkitError
from streamkit.errors import remedy_for
from streamkit.terminal import amount

from .options import Json, StoreOptions, check_space, with_options
from .output import print_line, print_note, print_result, record_line
from .progress import progress

__all__ = ["maintain", "repair", "salvage", "verify"]

OneSpace = Annotated[str | None, typer.Argument(metavar="SPACE", help="One space. Default: all.", show_default=False)]


_COUNTS = {"transactions": "transaction", "entries": "entry", "segments": "segment"}


@with_options
def verify(named: StoreOptions, space: OneSpace = None, json: Json = False) -> None:
    """Check the log, the archive and the index; print every finding, and exit with 1 if there is one.

    It looks for gaps, damage and differences. Internal spaces hold the state of groups, queues, views and routes:
    they are checked and not counted. With --json the last line is a summary, also after an error.
    """
    try:
        with named.open() as opened, progress("verifying", unit="transactions") as bar:
            report = opened.verify(space, progress=bar.at)
            if report.ok and not report.transactions:
                _check_there(opened, space, named)
    except StreamkitError as error:
        if json:
            failed = f"{type(error).__name__}: {error}"
            print_line(record_line({"ok": False, "findings": 0, **dict.fromkeys(_COUNTS, 0), "error": failed}))
        raise
    findings = len(report.findings)
    for finding in report.findings:
        fields = {
            "space": finding.space,
            "partition": finding.partition,
            "key": finding.key.hex(),
            "problem": finding.problem,
        }
        text = f"{finding.space}/{finding.partition}  {finding.key!r}  {finding.problem}"
        print_result(fields, text, json)
    counts = {name: getattr(report, name) for name in _COUNTS}
    if json:
        print_line(record_line({"ok": report.ok, "findings": findings, **counts}))
    elif report.ok:
        checked = ", ".join(amount(counts[name], noun) for name, noun in _COUNTS.items())
        print_line(f"no damage: {checked}")
    if not report.ok:
        print_note(f"CorruptData: {amount(findings, 'finding')}")
        for name in sorted({finding.space for finding in report.findings if finding.space >= " "}):
            print_note(
                f"space {name!r}: `streamkit repair {shlex.quote(name)}` builds a damaged index again. If the log is "
                f"damaged, {remedy_for(name)}"
            )
        raise typer.Exit(1)


@with_options
def repair(named: StoreOptions, space: OneSpace = None, json: Json = False) -> None:
    """Build the index again from the log and the archive. Stop writers and archivers first.

    The log and the archive are not changed."""
    with named.open() as opened:
        rows = opened.repair(space)
        if not rows:
            _check_there(opened, space, named)  # afterwards: the list of spaces may have been damaged
    print_result({"rows": rows}, f"the index was rebuilt: {amount(rows, 'row')} written or removed", json)


@with_options
def salvage(
    named: StoreOptions,
    space: Annotated[str, typer.Argument(metavar="SPACE", help="The damaged space.", show_default=False)],
    target: Annotated[str, typer.Argument(metavar="TARGET", help="The new space.", show_default=False)],
    into: Annotated[
        str | None,
        typer.Option(
            "--into", metavar="UUID", help="The store of the new space; the same store by default.", show_default=False
        ),
    ] = None,
    into_url: Annotated[
        str | None,
        typer.Option(metavar="URL", help="The place of that store, if not that of --url.", show_default=False),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Write nothing; only report the losses.")] = False,
    json: Json = False,
) -> None:
    """Copy every intact transaction of a damaged space to a new space, and print each lost one.

    Exits with 0 if everything was copied, and with 1 if transactions are lost, or may be lost. The others are copied
    all the same. The damaged space is not changed. Nobody may write to it meanwhile.
    """
    with ExitStack() as stack:
        opened = stack.enter_context(named.open())
        other = None
        if into is not None or into_url is not None:
            target_store = StoreOptions(into_url or named.url, into or str(opened.id), named.archive)
            other = stack.enter_context(target_store.open())
        bar = stack.enter_context(progress("salvaging", unit="transactions"))
        report = opened.salvage(space, target, into=other, dry_run=dry_run, progress=bar.at)
    done = "to copy" if dry_run else "copied"
    if json:
        print_line(record_line({"ok": report.ok, **msgspec.to_builtins(report)}))
    else:
        for lost in report.lost:
            what = (
                f"transaction {lost.first}" if lost.first == lost.last else f"transactions {lost.first} to {lost.last}"
            )
            wrote = f" of {', '.join(map(repr, lost.segments))}" if lost.segments else ""
            print_line(f"lost: {what} of partition {lost.partition}{wrote}: {lost.problem}")
        for missing in report.missing:
            print_line(f"missing: {missing.segment!r} {missing.first}..{missing.last}")
        for damage in report.damage:
            print_line(f"damaged: {damage}")
        print_line(
            f"{amount(report.entries, 'entry')} of {amount(report.transactions, 'transaction')} {done} to {target!r}"
        )
    if not report.ok:
        count = sum(lost.last - lost.first + 1 for lost in report.lost)
        doubt = f"{amount(len(report.damage), 'damaged place')}, where a transaction may have been"
        lost_ones = f"{amount(count, 'transaction')} lost"
        print_note(
            f"CorruptData: {lost_ones if count else doubt}; all others {'can be copied' if dry_run else 'copied'}"
        )
        raise typer.Exit(1)


@with_options
def maintain(named: StoreOptions, space: OneSpace = None, json: Json = False) -> None:
    """Do the upkeep of index, log and archive now. Run it on a schedule.

    Writers otherwise do this work in small steps. Readers do not need it, but may be faster after it."""
    with named.open() as opened:
        if space is not None or next(iter(opened.get_spaces()), None) is None:
            _check_there(opened, space, named)
        opened.maintain(space)
    if json:
        print_line(record_line({"ok": True, "space": space}))


def _check_there(opened: Store, space: str | None, named: StoreOptions) -> None:
    """Raise PermanentError if there is no such store, or no such space in it: nothing was found, and nothing done."""
    if space is not None:
        check_space(opened, space)
    named.check_exists(opened)
