"""The conformance suite of the public contract, for a store on any backend. With pytest, subclass and make a client:

    class TestMyStores(StoreConformance):
        def make_client(self):
            return streamkit.connect("mine://localhost/test")

Without pytest: `report = run_store_conformance(lambda: streamkit.connect("mine://localhost/test"))`.

A check calls `make_client` several times. Every client must reach the same root: they stand for processes that share
it. Each check has a store of its own and deletes it at the end. A backend that passes
`streamkit.testing.BackendConformance` is expected to pass: this suite shows it with the engine on top.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import ClassVar
from unittest import SkipTest

from streamkit.client import Client
from streamkit.testing.report import Report, run_checks

from .store_checks.committing import Committing
from .store_checks.contending import Contending
from .store_checks.following import Following
from .store_checks.leading import Leading
from .store_checks.living import Living
from .store_checks.naming import Naming
from .store_checks.paging import Paging
from .store_checks.producing import Producing
from .store_checks.reading import Reading
from .store_checks.removing import Removing
from .store_checks.sharing import Sharing

__all__ = ["StoreConformance", "run_store_conformance"]


class StoreConformance(
    Naming, Producing, Committing, Reading, Paging, Living, Following, Contending, Leading, Removing, Sharing
):
    """All checks. Override `make_client`; `rounds` and `patience` where the service is slow."""

    skip: ClassVar[Mapping[str, str]] = {}
    """A reason for each check that the service under test (for example, an emulator) is known to fail."""

    def setup_method(self, method: object = None) -> None:
        reason = self.skip.get(getattr(method, "__name__", ""))
        if reason is not None:
            raise SkipTest(reason)
        super().setup_method(method)

    @classmethod
    def checks(cls) -> dict[str, str]:
        """The names of all checks, each with the fault that it finds."""
        names = [name for name in dir(cls) if name.startswith("test_")]
        return {name: " ".join((getattr(cls, name).__doc__ or "").split()) for name in names}


def run_store_conformance(
    make_client: Callable[[], Client],
    *,
    only: str = "",
    skip: Mapping[str, str] | None = None,
    rounds: int = StoreConformance.rounds,
    patience: float = StoreConformance.patience,
) -> Report:
    """Run all checks whose name contains `only`, one after the other. It raises nothing: see `Report.ok`.

    `skip`: check to reason. `rounds`: how often a race is run. `patience`: seconds after which a call hangs.
    """

    class Conformance(StoreConformance):
        def make_client(self) -> Client:
            return make_client()

    Conformance.skip = skip or {}
    Conformance.rounds = rounds
    Conformance.patience = patience
    chosen = {name: broken for name, broken in Conformance.checks().items() if only in name}
    return run_checks(Conformance, chosen)
