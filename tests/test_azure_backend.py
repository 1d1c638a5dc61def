"""Stores on Azure Storage, proven on Azurite."""

from __future__ import annotations

import pytest
from fix_azurite import Azurite

import streamkit_azure
from streamkit.backend import Driver
from streamkit.testing import BackendConformance

pytestmark = pytest.mark.azure


class TestAzure(BackendConformance):
    @pytest.fixture(autouse=True)
    def _server(self, azurite: Azurite) -> None:
        self.url = azurite.url("conformance")

    def make_driver(self) -> Driver:
        return streamkit_azure.connect(self.url, timeout=30)
