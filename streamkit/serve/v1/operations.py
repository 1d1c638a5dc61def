"""The OpenAPI descriptions of the native interface's routes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...removing.report import EraseReport, TrimReport
from ...space import SpaceSettings
from ..encoding import EntryOut
from ..operation import JSON, NUMBER, TEXT, Operation
from ..priorities import Rules
from . import cloudevents
from .asking import FoundOut, GetIn, LinksIn, NearestIn, RangeIn, SearchIn
from .composite import SeveralIn
from .groups import (
    AllDeadOut,
    AllPendingOut,
    GroupChange,
    GroupIn,
    GroupOut,
    GroupsOut,
    QueueIn,
    RedriveIn,
    RedriveOut,
    SeekIn,
)
from .jobs import JobIn, JobsOut
from .keys import KeyIn, KeysOut, NewKeyOut
from .leases import LeaseIn, LeaseOut
from .members import MemberIn, MemberOut, MembersOut
from .receiving import ReceivedOut, ReceiveIn, SettledOut, SettleIn
from .removing import EraseIn, TrimIn
from .routes import RouteIn, RouteOut, RoutesOut
from .statistics import ActivityOut, StatisticsOut
from .upkeep import OperationIn, OperationOut, OperationsOut
from .values import (
    Page,
    RecordIn,
    RetentionIn,
    SegmentsOut,
    SettingsIn,
    SeveralPage,
    SizeOut,
    SpacesOut,
    StatusOut,
    StoresOut,
)
from .views import QueryIn, RowsOut, ViewOut, ViewsOut
from .writing import OutcomeOut, ResultOut, TransactionIn, TransactionOut

__all__ = ["OPERATIONS", "WITH_BODY"]

_FLAG: Mapping[str, Any] = {"type": "boolean"}
_NDJSON = "application/x-ndjson"
_PAGES = (_NDJSON, cloudevents.BATCH, "application/vnd.apache.arrow.stream")
_EVENTS = "text/event-stream"
_LIMIT: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 10_000, "default": 256}
_SOME: Mapping[str, Any] = {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100}
_OFFSET: Mapping[str, Any] = {"type": "string", "pattern": "^[0-9a-f]+$"}
_NAMES: Mapping[str, Any] = {"type": "array", "items": TEXT, "maxItems": 100}
_CURSOR: Mapping[str, Any] = {"type": "string", "pattern": "^[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$"}
_LISTING: dict[str, Mapping[str, Any]] = {
    "prefix": TEXT,
    "after": {"type": "string", "minLength": 1, "maxLength": 255},
    "limit": {"type": "integer", "minimum": 1, "maximum": 1_000, "default": 100},
}
_READING: dict[str, Mapping[str, Any]] = {
    "from": {"type": "string", "pattern": "^(beginning|end|[0-9]{1,15})$"},
    "until": NUMBER,
    "limit": _LIMIT,
    "max_bytes": {"type": "integer", "minimum": 1, "maximum": 8 << 20, "default": 1 << 20},
    "wait": {"type": "number", "minimum": 0, "maximum": 30},
    "reverse": _FLAG,
    "gaps": {"type": "string", "enum": ["yield", "skip", "raise"], "default": "yield"},
}
_ASKING: dict[str, Mapping[str, Any]] = {
    "at_least": _OFFSET,
    "wait": {"type": "number", "minimum": 0, "maximum": 30, "default": 10},
    "seconds": {"type": "number", "exclusiveMinimum": 0, "maximum": 30, "default": 5},
    "limit": _SOME,
}
_KEY: Mapping[str, Mapping[str, Any]] = {"Idempotency-Key": {"type": "string", "minLength": 1, "maxLength": 255}}
_LEASE: Mapping[str, Mapping[str, Any]] = {
    "Lease-Token": {"type": "string", "pattern": "^[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$"},
}
_MATCH: Mapping[str, Mapping[str, Any]] = {
    "If-Match": {"type": "string", "pattern": '^"[0-9]{1,19}"$'},
    "If-None-Match": {"type": "string", "enum": ["*"]},
}

OPERATIONS: Mapping[str, Operation] = {
    "upgrade_required": Operation(answers={101: None}),
    "list_stores": Operation(query=_LISTING, answers={200: StoresOut}),
    "size": Operation(answers={200: SizeOut}),
    "space_size": Operation(answers={200: SizeOut}),
    "get_priorities": Operation(answers={200: Rules}),
    "put_priorities": Operation(body={JSON: Rules}, answers={200: Rules}),
    "list_spaces": Operation(query=_LISTING, answers={200: SpacesOut}),
    "get_space": Operation(answers={200: SpaceSettings}),
    "create_space": Operation(
        body={JSON: SettingsIn}, needs_body=False, answers={200: SpaceSettings, 201: SpaceSettings}
    ),
    "change_space": Operation(headers={"If-Match": TEXT}, body={JSON: RetentionIn}, answers={200: SpaceSettings}),
    "delete_space": Operation(answers={204: None}),
    "list_segments": Operation(query=_LISTING, answers={200: SegmentsOut}),
    "get_segment": Operation(answers={200: StatusOut, 304: None}),
    "delete_segment": Operation(answers={200: TrimReport}),
    "read_segment": Operation(
        query={"after": NUMBER, "before": NUMBER, **_READING},
        answers={200: Page, 304: None},
        others=(*_PAGES, _EVENTS),
    ),
    "append": Operation(
        headers={**_MATCH, **_KEY, **_LEASE},
        body={
            JSON: RecordIn | list[RecordIn],
            _NDJSON: None,
            cloudevents.STRUCTURED: {"type": "object"},
            cloudevents.BATCH: {"type": "array", "items": {"type": "object"}},
            "application/octet-stream": None,
        },
        answers={200: StatusOut, 201: StatusOut},
    ),
    "read_entry": Operation(answers={200: EntryOut}, others=(cloudevents.STRUCTURED,)),
    "read_space": Operation(
        query={"offset": _OFFSET, **_READING},
        answers={200: Page, 304: None},
        others=(*_PAGES, _EVENTS),
    ),
    "append_to_space": Operation(
        query={"segment_key": TEXT},
        headers={**_KEY, **_LEASE},
        body={_NDJSON: None},
        answers={200: TransactionOut, 201: TransactionOut},
    ),
    "read_several": Operation(
        query={
            "space": _NAMES,
            "cursor": _CURSOR,
            **_READING,
        },
        answers={200: SeveralPage},
        others=(*_PAGES, _EVENTS),
    ),
    "query_several": Operation(body={JSON: SeveralIn}, answers={200: SeveralPage}, others=_PAGES),
    "commit": Operation(
        headers={**_KEY, **_LEASE},
        body={JSON: TransactionIn},
        answers={200: TransactionOut, 201: TransactionOut},
    ),
    "outcome": Operation(answers={200: OutcomeOut}),
    "find_result": Operation(query={"segment": TEXT}, answers={200: ResultOut}),
    "watch_statuses": Operation(answers={200: str}, media=_EVENTS),
    "trim": Operation(body={JSON: TrimIn}, answers={200: TrimReport}),
    "erase": Operation(body={JSON: EraseIn}, answers={200: EraseReport}),
    "acquire": Operation(body={JSON: LeaseIn}, needs_body=False, answers={201: LeaseOut}),
    "renew": Operation(headers=_LEASE, answers={200: LeaseOut}),
    "release": Operation(headers=_LEASE, answers={204: None}),
    "list_groups": Operation(query=_LISTING, answers={200: GroupsOut}),
    "list_queues": Operation(query=_LISTING, answers={200: GroupsOut}),
    "create_group": Operation(body={JSON: GroupIn}, needs_body=False, answers={200: GroupOut, 201: GroupOut}),
    "create_queue": Operation(body={JSON: QueueIn}, needs_body=False, answers={200: GroupOut, 201: GroupOut}),
    "get_group": Operation(answers={200: GroupOut}),
    "change_group": Operation(body={JSON: GroupChange}, answers={200: GroupOut}),
    "delete_group": Operation(answers={204: None}),
    "delete_queue": Operation(answers={204: None}),
    "list_pending": Operation(query={"consumer": TEXT, "limit": _SOME}, answers={200: AllPendingOut}),
    "list_dead": Operation(query={"limit": _SOME}, answers={200: AllDeadOut}),
    "redrive": Operation(body={JSON: RedriveIn}, needs_body=False, answers={200: RedriveOut}),
    "seek": Operation(body={JSON: SeekIn}, answers={200: GroupOut}),
    "put_jobs": Operation(headers=_KEY, body={JSON: JobIn}, answers={200: JobsOut, 201: JobsOut}),
    "receive": Operation(body={JSON: ReceiveIn}, needs_body=False, answers={200: ReceivedOut}),
    "settle": Operation(body={JSON: SettleIn}, answers={200: SettledOut}),
    "list_members": Operation(answers={200: MembersOut}, others=(_EVENTS,)),
    "enter": Operation(
        headers=_LEASE, body={JSON: MemberIn}, needs_body=False, answers={200: MemberOut, 201: MemberOut}
    ),
    "exit_member": Operation(headers=_LEASE, answers={204: None}),
    "list_routes": Operation(answers={200: RoutesOut}),
    "get_route": Operation(answers={200: RouteOut}),
    "control_route": Operation(body={JSON: RouteIn}, answers={200: RouteOut}),
    "delete_route": Operation(answers={204: None}),
    "list_views": Operation(answers={200: ViewsOut}),
    "get_view": Operation(answers={200: ViewOut}),
    "query_view": Operation(body={JSON: QueryIn}, answers={200: RowsOut}),
    "get_in_view": Operation(query={"key": TEXT, "reverse": _FLAG, **_ASKING}, answers={200: FoundOut}),
    "range_of_view": Operation(
        query={"start": TEXT, "end": TEXT, "prefix": TEXT, "reverse": _FLAG, **_ASKING}, answers={200: FoundOut}
    ),
    "search_view": Operation(
        query={
            "query": TEXT,
            "order": {"type": "string", "enum": ["rank", "newest", "oldest"], "default": "rank"},
            "syntax": _FLAG,
            **_ASKING,
        },
        answers={200: FoundOut},
    ),
    "nearest_in_view": Operation(query={"vector": TEXT, **_ASKING}, answers={200: FoundOut}),
    "links_of_view": Operation(
        query={"source": TEXT, "target": TEXT, "reverse": _FLAG, **_ASKING}, answers={200: FoundOut}
    ),
    "get_in_view_by_body": Operation(body={JSON: GetIn}, answers={200: FoundOut}),
    "range_of_view_by_body": Operation(body={JSON: RangeIn}, answers={200: FoundOut}),
    "search_view_by_body": Operation(body={JSON: SearchIn}, answers={200: FoundOut}),
    "nearest_in_view_by_body": Operation(body={JSON: NearestIn}, answers={200: FoundOut}),
    "links_of_view_by_body": Operation(body={JSON: LinksIn}, answers={200: FoundOut}),
    "statistics": Operation(answers={200: StatisticsOut}),
    "activity": Operation(
        query={"from": NUMBER, "until": NUMBER, "bars": {"type": "integer", "minimum": 1, "maximum": 500}},
        answers={200: ActivityOut},
    ),
    "list_keys": Operation(answers={200: KeysOut}),
    "create_key": Operation(body={JSON: KeyIn}, answers={201: NewKeyOut}),
    "revoke_key": Operation(answers={204: None}),
    "list_operations": Operation(
        query={"limit": {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}},
        answers={200: OperationsOut},
    ),
    "start_operation": Operation(body={JSON: OperationIn}, answers={202: OperationOut}),
    "get_operation": Operation(answers={200: OperationOut}, others=(_EVENTS,)),
    "push": Operation(query={"consumer": TEXT, "limit": _SOME}, answers={200: str}, media=_EVENTS),
}
"""The operations by the name of the handler, or by the name that WITH_BODY has for it."""
WITH_BODY: Mapping[str, str] = {
    "read_several": "query_several",
    **{name: f"{name}_by_body" for name in OPERATIONS if f"{name}_by_body" in OPERATIONS},
}
"""The names of the descriptions of handlers that take either parameters or a body."""
