"""Tenants: a registry of names with stores, metadata and quotas."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from uuid import UUID, uuid4

import pytest

import streamkit
from streamkit import Client, CorruptData, Record, SpaceFull
from streamkit.tenants import Tenants


@pytest.fixture
def client() -> Iterator[Client]:
    with streamkit.connect("memory://") as client:
        yield client


@pytest.fixture
def tenants(client: Client) -> Tenants:
    return Tenants(client, client.store(uuid4()))


def test_a_name_finds_its_store_and_metadata(client: Client, tenants: Tenants) -> None:
    made = tenants.create("acme", metadata={"plan": "small"}, quota_bytes=100)
    assert tenants.find("acme") == made
    assert (made.metadata, made.quota_bytes) == ({"plan": "small"}, 100)
    with tenants.open("acme") as store:
        assert store.id == made.store
    existing = uuid4()
    assert tenants.create("beta", store=existing).store == existing
    assert [tenant.name for tenant in tenants.list()] == ["acme", "beta"]
    assert [tenant.name for tenant in tenants.list("b")] == ["beta"]


def test_a_name_is_created_once_however_many_try(client: Client, tenants: Tenants) -> None:
    made: list[UUID] = []
    refused: list[str] = []

    def create() -> None:
        try:
            made.append(tenants.create("acme").store)
        except ValueError as error:
            refused.append(str(error))

    threads = [threading.Thread(target=create) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (len(made), len(refused)) == (1, 7)
    found = tenants.find("acme")
    assert found is not None
    assert found.store == made[0]


def test_a_change_keeps_what_is_not_given(tenants: Tenants) -> None:
    tenants.create("acme", metadata={"plan": "small"}, quota_bytes=100)
    assert tenants.change("acme", metadata={"plan": "large"}).quota_bytes == 100
    changed = tenants.change("acme", quota_bytes=None)
    assert (changed.metadata, changed.quota_bytes) == ({"plan": "large"}, None)
    assert tenants.find("acme") == changed


def test_usage_measures_the_store_and_check_refuses_a_full_one(tenants: Tenants) -> None:
    tenants.create("acme", quota_bytes=10)
    with tenants.open("acme") as store:
        store.produce("orders", "a", [Record(b"12345")])
        assert tenants.check("acme").payload_bytes == 5
        store.produce("orders", "a", [Record(b"67890")])
    used = tenants.usage("acme")
    assert (used.entries, used.payload_bytes, used.over) == (2, 10, True)
    with pytest.raises(SpaceFull, match="quota of 10"):
        tenants.check("acme")


def test_a_removed_name_can_be_made_again(client: Client, tenants: Tenants) -> None:
    first = tenants.create("acme")
    with tenants.open("acme") as store:
        store.produce("orders", "a", [Record(b"1")])
    tenants.remove("acme", delete_store=True)
    assert tenants.find("acme") is None
    assert list(tenants.list()) == []
    assert first.store not in set(client.stores())
    tenants.remove("acme")
    assert tenants.create("acme").store != first.store


def test_wrong_calls_name_the_remedy(client: Client, tenants: Tenants) -> None:
    with pytest.raises(ValueError, match="create"):
        tenants.open("nobody")
    with pytest.raises(ValueError, match="create"):
        tenants.change("nobody", quota_bytes=1)
    with pytest.raises(ValueError, match="quota_bytes"):
        tenants.create("acme", quota_bytes=0)
    with pytest.raises(TypeError, match="UUID"):
        tenants.create("acme", store="text")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="metadata"):
        tenants.create("acme", metadata={"a": 1})  # type: ignore[dict-item]
    assert tenants.find("acme") is None
    store = client.store(uuid4())
    store.produce("tenants", "strange", [Record(b"no JSON")])
    with pytest.raises(CorruptData, match="no tenants"):
        Tenants(client, store).find("strange")


def test_a_tenant_is_changed_after_its_last_version_was_erased(client: Client) -> None:
    store = client.store(uuid4())
    tenants = Tenants(client, store)
    made = tenants.create("acme", metadata={"plan": "small"})
    tenants.change("acme", metadata={"plan": "secret"})
    store.erase("tenants", "acme", first=2, last=2)
    assert tenants.find("acme") == made
    assert tenants.change("acme", quota_bytes=5).metadata == {"plan": "small"}
    store.erase("tenants", "acme")
    with pytest.raises(ValueError, match="there is no tenant"):
        tenants.change("acme", quota_bytes=6)
    assert tenants.create("acme").metadata == {}
