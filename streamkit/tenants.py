"""Tenants: a registry of names. Each name has a store, metadata and a quota; the registry is a space of a store."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from uuid import UUID, uuid4

import msgspec

from .arguments import check_texts, check_type
from .client import Client
from .decoders import json_decoder
from .errors import CorruptData, SequenceMismatch, SpaceFull
from .model import Record
from .names import check_name
from .store import Store

__all__ = ["Tenant", "TenantUsage", "Tenants"]


class Tenant(msgspec.Struct, frozen=True):
    """A tenant of the registry: its name, its store and its quota."""

    name: str
    store: UUID
    metadata: dict[str, str] = {}
    quota_bytes: int | None = None
    """The most bytes of payload that its store should hold; None: any number."""


class TenantUsage(msgspec.Struct, frozen=True):
    """A tenant's size, without entries: from the statuses of its segments."""

    tenant: Tenant
    entries: int
    payload_bytes: int
    stored_bytes: int

    @property
    def over(self) -> bool:
        """True if its quota is used up."""
        quota = self.tenant.quota_bytes
        return quota is not None and self.payload_bytes >= quota


class Tenants:
    """The registry in a space of `store`: `Tenants(client, store)`. The stores of the tenants are the client's.

    Any number of processes may change it: each change expects the version that it has read. Every version stays in the
    log, as an audit of the registry.
    """

    def __init__(self, client: Client, store: Store, space: str = "tenants") -> None:
        check_type(client, Client, "client is what connect() gives")
        check_type(store, Store, "store is what client.store(…) gives")
        self._client = client
        self._store = store
        self._space = check_name(space, "space")

    def create(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        quota_bytes: int | None = None,
        store: UUID | None = None,
    ) -> Tenant:
        """Add a tenant. Its store is a new one, or the existing one with the UUID `store`. ValueError if the name is
        taken."""
        check_name(name, "segment")
        tenant = _checked(Tenant(name, uuid4() if store is None else store, dict(metadata or {}), quota_bytes))
        version = self._store.segment_status(self._space, name).last_sequence
        if self.find(name) is not None or not self._write(tenant, version):
            raise ValueError(f"there is a tenant {name!r} already: find({name!r}) gives it")
        return tenant

    def find(self, name: str) -> Tenant | None:
        """The tenant with this name, or None."""
        entry = self._store.peek(self._space, check_name(name, "segment"))
        if not entry.sequence:
            return None
        try:
            return json_decoder(Tenant).decode(entry.payload)
        except msgspec.DecodeError as error:
            raise CorruptData(f"the space {self._space!r} has entries that are no tenants, such as {name!r}") from error

    def list(self, prefix: str = "") -> Iterator[Tenant]:
        """The tenants by name, in code-point order. `prefix`: only names that begin with it."""
        for name in self._store.get_segments(self._space, prefix=prefix):
            found = self.find(name)
            if found is not None:
                yield found

    def change(
        self,
        name: str,
        *,
        metadata: Mapping[str, str] | None = None,
        quota_bytes: int | msgspec.UnsetType | None = msgspec.UNSET,
    ) -> Tenant:
        """Replace the metadata or the quota of a tenant, or both. ValueError if there is no such tenant."""
        while True:
            # The last version may be erased, and then its sequence is not that of the entry.
            version = self._store.segment_status(self._space, check_name(name, "segment")).last_sequence
            found = self._found(name)
            changed = msgspec.structs.replace(
                found,
                metadata=found.metadata if metadata is None else dict(metadata),
                quota_bytes=found.quota_bytes if quota_bytes is msgspec.UNSET else quota_bytes,
            )
            if self._write(_checked(changed), version):
                return changed

    def remove(self, name: str, *, delete_store: bool = False) -> None:
        """Remove a tenant from the registry. `delete_store`: delete its store first. A missing tenant is no error."""
        found = self.find(name)
        if found is None:
            return
        if delete_store:
            self._client.delete_store(found.store)
        self._store.delete_segment(self._space, name)

    def open(self, name: str) -> Store:
        """A handle of the tenant's store. ValueError if there is no such tenant."""
        return self._client.store(self._found(name).store)

    def usage(self, name: str) -> TenantUsage:
        """Measure one tenant. ValueError if there is no such tenant."""
        tenant = self._found(name)
        with self._client.store(tenant.store) as store:
            size = store.size()
        return TenantUsage(tenant, size.entries, size.payload_bytes, size.stored_bytes)

    def check(self, name: str) -> TenantUsage:
        """Measure one tenant. SpaceFull if its quota is used up.

        A commit does not look at the quota: call this before large writes, or on a schedule.
        `Retention(when_full="reject")` is exact, for one space.
        """
        found = self.usage(name)
        if found.over:
            raise SpaceFull(
                f"the tenant {name!r} has {found.payload_bytes:,} bytes of payload, and a quota of "
                f"{found.tenant.quota_bytes:,}: trim its spaces, or change({name!r}, quota_bytes=…)"
            )
        return found

    def _found(self, name: str) -> Tenant:
        found = self.find(name)
        if found is None:
            raise ValueError(f"there is no tenant {name!r}: create it with create({name!r})")
        return found

    def _write(self, tenant: Tenant, version: int) -> bool:
        """Write the next version. False if another process was faster."""
        try:
            record = Record(msgspec.json.encode(tenant))
            self._store.produce(self._space, tenant.name, [record], expected_sequence=version)
        except SequenceMismatch:
            return False
        return True

    def __repr__(self) -> str:
        return f"<Tenants in {self._space!r} of {self._store!r}>"


def _checked(tenant: Tenant) -> Tenant:
    check_type(tenant.store, UUID, "a tenant's store is a uuid.UUID")
    check_texts("metadata", tenant.metadata)
    quota = tenant.quota_bytes
    if quota is not None and (type(quota) is not int or quota < 1):
        raise ValueError(f"quota_bytes is a number of bytes from 1, or None, not {quota!r}")
    return tenant
