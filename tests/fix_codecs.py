"""The two codecs: the Python functions, and the compiled twin if it is installed. Tests of formats run over each."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from harness.codecs import CODECS, using


@pytest.fixture(scope="module", params=CODECS)
def codec(request: pytest.FixtureRequest) -> Iterator[str]:
    """The codec of all tests of the module, which run once with each."""
    with using(request.param):
        yield request.param
