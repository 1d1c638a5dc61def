"""Stores on S3, proven on the moto server."""

from __future__ import annotations

import pytest
from fix_s3 import S3Bucket

import streamkit_s3
from streamkit.backend import Driver
from streamkit.testing import BackendConformance

pytestmark = pytest.mark.s3


class TestS3(BackendConformance):
    @pytest.fixture(autouse=True)
    def _bucket(self, s3_bucket: S3Bucket) -> None:
        self.url = s3_bucket.url("conformance")

    def make_driver(self) -> Driver:
        return streamkit_s3.connect(self.url, timeout=30)
