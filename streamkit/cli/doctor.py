"""doctor: the causes of slow calls, in words."""

from __future__ import annotations

from streamkit.doctor import diagnose
from streamkit.speed import codec
from streamkit.terminal import amount

from .options import Json, StoreOptions, with_options
from .output import print_line, record_line

__all__ = ["doctor"]


@with_options
def doctor(named: StoreOptions, json: Json = False) -> None:
    """Name slow parts and their causes: requests, index, clocks, groups. Nothing is written.

    Each process counts its own conflicts, retries and cold caches: call `streamkit.doctor.diagnose(store)` in the slow
    process.
    """
    with named.open() as opened:
        found = diagnose(opened)
        if not found.probe.spaces:
            named.check_exists(opened)
    spaces = found.probe.spaces
    if json:
        for finding in found.findings:
            print_line(record_line(finding))
        request = round(found.probe.request_seconds, 6)
        summary = {"ok": found.ok, "spaces": len(spaces), "request_seconds": request, "codec": codec()}
        print_line(record_line(summary))
        return
    for finding in found.findings:
        place = f"space {finding.space!r}: " if finding.space else ""
        print_line(f"{finding.subject}: {place}{finding.text}")
    unindexed = max((space.unindexed for space in spaces), default=0)
    left = f" (left out: {found.probe.left:,})" if found.probe.left else ""
    took = f"a request takes {found.probe.request_seconds * 1000:.1f} ms"
    index = f"not in the index yet: at most {amount(unindexed, 'transaction')} of a space"
    print_line(f"{amount(len(found.findings), 'finding')} in {amount(len(spaces), 'space')}{left}; {took}; {index}")
    print_line(f"codec: {codec()}")
