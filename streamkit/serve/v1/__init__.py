"""The native interface, `/v1`."""

from __future__ import annotations

from ..routing import Handler, Router
from ..upgrading import upgrade_required
from . import (
    asking,
    groups,
    jobs,
    keys,
    leases,
    members,
    messages,
    priorities,
    reading,
    receiving,
    removing,
    routes,
    segments,
    spaces,
    statistics,
    statuses,
    upkeep,
    views,
    writing,
)
from .operations import OPERATIONS, WITH_BODY

__all__ = ["messages", "register"]

_STORE = "/v1/stores/{st}"
_SPACE = _STORE + "/spaces/{sp}"
_SEGMENT = _SPACE + "/segments/{sg}"
_GROUP = _SPACE + "/groups/{g}"
_QUEUE = _STORE + "/queues/{sp}"


def register(router: Router) -> None:
    """Add the routes of the native interface."""

    def add(methods: str, pattern: str, handler: Handler, scope: str, *, narrow: bool = False) -> None:
        for method in methods.split():
            name = getattr(handler, "__name__", "")
            has_body = name in WITH_BODY and method != "GET"
            operation = OPERATIONS[WITH_BODY[name] if has_body else name]
            router.add(method, pattern, handler, scope, operation, narrow=narrow)

    router.add("GET", messages.PATH.decode(), upgrade_required, "read", OPERATIONS["upgrade_required"])
    add("GET", "/v1/stores", spaces.list_stores, "admin")
    add("GET", _STORE, spaces.size, "read")
    add("GET", _STORE + "/priorities", priorities.get_priorities, "admin")
    add("PUT", _STORE + "/priorities", priorities.put_priorities, "admin")
    add("GET", _STORE + "/spaces", spaces.list_spaces, "read")
    add("GET", _SPACE, spaces.get_space, "read", narrow=True)
    add("PUT", _SPACE, spaces.create_space, "admin")
    add("PATCH", _SPACE, spaces.change_space, "admin")
    add("DELETE", _SPACE, spaces.delete_space, "delete")
    add("GET", _SPACE + "/size", spaces.space_size, "read")
    add("GET", _SPACE + "/segments", segments.list_segments, "read", narrow=True)
    add("GET HEAD", _SEGMENT, segments.get_segment, "read")
    add("DELETE", _SEGMENT, segments.delete_segment, "delete")
    add("GET", _SEGMENT + "/entries", reading.read_segment, "read")
    add("POST", _SEGMENT + "/entries", writing.append, "write")
    add("GET", _SEGMENT + "/entries/{n}", reading.read_entry, "read")
    add("GET", _SPACE + "/entries", reading.read_space, "read")
    add("POST", _SPACE + "/entries", writing.append_to_space, "write", narrow=True)
    add("GET QUERY POST", _STORE + "/entries", reading.read_several, "read")
    add("POST", _SPACE + "/transactions", writing.commit, "write", narrow=True)
    add("GET", _SPACE + "/transactions/{id}", writing.outcome, "read", narrow=True)
    add("GET", _SPACE + "/idempotency/{key}", writing.find_result, "read", narrow=True)
    add("GET", _SPACE + "/statuses", statuses.watch_statuses, "read", narrow=True)
    add("POST", _SPACE + "/trim", removing.trim, "delete", narrow=True)
    add("POST", _SPACE + "/erase", removing.erase, "delete", narrow=True)
    add("POST", _STORE + "/leases/{key}", leases.acquire, "write")
    add("PUT", _STORE + "/leases/{key}", leases.renew, "write")
    add("DELETE", _STORE + "/leases/{key}", leases.release, "write")
    add("GET", _SPACE + "/groups", groups.list_groups, "read")
    add("PUT", _GROUP, groups.create_group, "write")
    add("DELETE", _GROUP, groups.delete_group, "delete")
    add("POST", _GROUP + "/seek", groups.seek, "write")
    add("GET", _STORE + "/queues", groups.list_queues, "read")
    add("PUT", _QUEUE, groups.create_queue, "write")
    add("DELETE", _QUEUE, groups.delete_queue, "delete")
    add("POST", _QUEUE + "/jobs", jobs.put_jobs, "write")
    for base in (_GROUP, _QUEUE):
        add("GET", base, groups.get_group, "read")
        add("PATCH", base, groups.change_group, "write")
        add("GET", base + "/pending", groups.list_pending, "read")
        add("GET", base + "/dead", groups.list_dead, "read")
        add("POST", base + "/redrive", groups.redrive, "write")
        add("POST", base + "/receive", receiving.receive, "read")
        add("POST", base + "/settle", receiving.settle, "write")
        add("GET", base + "/deliveries", receiving.push, "read")
    add("GET", _STORE + "/members/{m}", members.list_members, "read")
    add("PUT", _STORE + "/members/{m}/{name}", members.enter, "write")
    add("DELETE", _STORE + "/members/{m}/{name}", members.exit_member, "write")
    add("GET", _STORE + "/routes", routes.list_routes, "read")
    add("GET", _STORE + "/routes/{r}", routes.get_route, "read")
    add("POST", _STORE + "/routes/{r}", routes.control_route, "admin")
    add("DELETE", _STORE + "/routes/{r}", routes.delete_route, "admin")
    add("GET", _STORE + "/views", views.list_views, "read")
    add("GET", _STORE + "/views/{v}", views.get_view, "read")
    add("POST", _STORE + "/views/{v}/query", views.query_view, "read")
    for function, handler in asking.HANDLERS.items():
        add("GET POST", f"{_STORE}/views/{{v}}/{function}", handler, "read")
    add("GET", _STORE + "/statistics", statistics.statistics, "read")
    add("GET", _SPACE + "/activity", statistics.activity, "read")
    add("GET", "/v1/keys", keys.list_keys, "admin")
    add("POST", "/v1/keys", keys.create_key, "admin")
    add("DELETE", "/v1/keys/{id}", keys.revoke_key, "admin")
    add("GET", _STORE + "/operations", upkeep.list_operations, "admin")
    add("POST", _STORE + "/operations", upkeep.start_operation, "admin")
    add("GET", _STORE + "/operations/{id}", upkeep.get_operation, "admin")
