"""The names that telemetry gives out: attributes, metrics and their units, after OpenTelemetry's conventions."""

from __future__ import annotations

from types import MappingProxyType

__all__ = [
    "BUCKETS",
    "COUNTERS",
    "GAUGES",
    "LIBRARY",
    "PROPAGATED",
    "REQUESTS",
    "SERVER",
    "SERVER_COUNTERS",
    "SERVER_GAUGES",
    "SYSTEM",
]

LIBRARY = "streamkit"
SERVER = "streamkit.serve"
SYSTEM = "streamkit"
"""The value of `db.system.name` and `messaging.system`."""

PROPAGATED = ("traceparent", "tracestate")
"""Metadata that says which trace wrote a record (W3C Trace Context)."""

DB_SYSTEM = "db.system.name"
DB_STORE = "db.namespace"
DB_SPACE = "db.collection.name"
DB_OPERATION = "db.operation.name"
DB_BATCH = "db.operation.batch.size"
DB_ROWS = "db.response.returned_rows"
ERROR = "error.type"

MESSAGING_SYSTEM = "messaging.system"
MESSAGING_DESTINATION = "messaging.destination.name"
MESSAGING_GROUP = "messaging.consumer.group.name"
MESSAGING_CLIENT = "messaging.client.id"
MESSAGING_OPERATION = "messaging.operation.name"
MESSAGING_TYPE = "messaging.operation.type"
MESSAGING_BATCH = "messaging.batch.message_count"

STORE = "streamkit.store.id"
ATTEMPT = "streamkit.delivery.attempt"
SEGMENT = "streamkit.segment"
KEY = "streamkit.idempotency_key"
PAYLOAD = "streamkit.payload"

DB_DURATION = "db.client.operation.duration"
CLIENT_DURATION = "messaging.client.operation.duration"
PROCESS_DURATION = "messaging.process.duration"
SENT = "messaging.client.sent.messages"
CONSUMED = "messaging.client.consumed.messages"

BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0)
"""Bounds of the durations' buckets, in seconds, as the conventions recommend."""

REQUESTS = "streamkit.storage.requests"
BYTES = "streamkit.storage.bytes"
REQUEST_KIND = "streamkit.request.kind"
DIRECTION = "streamkit.direction"

COUNTERS = MappingProxyType(
    {
        "transactions": ("streamkit.transactions", "{transaction}", "Transactions committed"),
        "entries": ("streamkit.entries", "{entry}", "Entries committed"),
        "conflicts": ("streamkit.conflicts", "{conflict}", "Commits that met another writer's"),
        "retries": ("streamkit.retries", "{request}", "Requests made again after throttling or an error"),
        "settled": ("streamkit.lost_answers", "{commit}", "Commits with a lost answer, settled by reading the log"),
        "posted": ("streamkit.inbox.posted", "{request}", "Requests left for another process to commit"),
        "combined": ("streamkit.inbox.combined", "{request}", "Requests of other processes committed here"),
        "upkeeps": ("streamkit.upkeeps", "{upkeep}", "Times that the index was brought up to the log"),
        "upkeep_failures": ("streamkit.upkeep_failures", "{upkeep}", "Times that upkeep failed"),
        "cache_hits": ("streamkit.cache.hits", "{lookup}", "Lookups that were answered from memory"),
        "cache_misses": ("streamkit.cache.misses", "{lookup}", "Lookups that asked the storage"),
    }
)
"""Metric, unit and description of each count of `store.statistics()`."""

GAUGES = MappingProxyType(
    {
        "group": ("streamkit.group.lag", "{entry}", "Entries of a group or queue that are not done"),
        "dead": ("streamkit.group.dead_letters", "{entry}", "Dead letters of a group or queue"),
        "view": ("streamkit.view.behind", "s", "Seconds from a view's position to the newest entry"),
        "route": ("streamkit.route.behind", "s", "Seconds from a route's position to the newest entry"),
    }
)
"""Metric, unit and description of each lag."""

PART = "streamkit.part"

SERVER_COUNTERS = MappingProxyType(
    {
        "requests": "streamkit.requests",
        "seconds": "streamkit.request_seconds",
        "refusals": "streamkit.refusals",
        "ring_misses": "streamkit.ring_misses",
        "store": "streamkit.store",
    }
)
SERVER_GAUGES = MappingProxyType(
    {
        "streams": "streamkit.streams",
        "requests": "streamkit.requests_in_flight",
        "rings": "streamkit.rings",
        "stores": "streamkit.open_stores",
    }
)
