"""doctor: the causes of slow calls, in words."""

from __future__ import annotations

import msgspec

from streamkit import PermanentError
from streamkit.doctor import diagnose
from streamkit.speed import codec

from .options import Archive, Json, StoreId, Url, open_client, open_store, resolved_url
from .output import print_line, record_line

__all__ = ["doctor"]


def doctor(json: Json = False, url: Url = None, store: StoreId = None, archive: Archive = None) -> None:
    """Explain what is slow and why: requests, index, clocks, groups. Nothing is written.

    Each process counts its own conflicts, retries and cold caches: call `streamkit.doctor.diagnose(store)` in the slow
    process.
    """
    with open_store(url, store, archive) as opened:
        found = diagnose(opened)
        if not found.probe.spaces:
            with open_client(url, archive) as client:
                if opened.id not in client.stores():
                    raise PermanentError(f"there is no store {opened.id} at {resolved_url(url)}")
    spaces = found.probe.spaces
    if json:
        for finding in found.findings:
            print_line(record_line(msgspec.to_builtins(finding)))
        request = round(found.probe.request_seconds, 6)
        summary = {"ok": found.ok, "spaces": len(spaces), "request_seconds": request, "codec": codec()}
        print_line(record_line(summary))
        return
    for finding in found.findings:
        place = f"space {finding.space!r}: " if finding.space else ""
        print_line(f"{finding.subject}: {place}{finding.text}")
    unindexed = max((space.unindexed for space in spaces), default=0)
    looked = f"{len(spaces):,} spaces looked at" + (f", {found.probe.left:,} not" if found.probe.left else "")
    took = f"a request takes {found.probe.request_seconds * 1000:.1f} ms"
    print_line(f"{len(found.findings)} findings; {looked}; {took}; {unindexed:,} transactions unindexed at most")
    print_line(f"codec: {codec()}")
