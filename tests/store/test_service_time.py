"""The dates of a service's answers."""

from __future__ import annotations

from email.utils import parsedate_to_datetime

import pytest

from streamkit.backend import ServiceClock


@pytest.mark.parametrize(
    "date",
    [
        "Wed, 12 Oct 2022 17:50:00 GMT",
        "Thu, 29 Feb 2024 23:59:59 GMT",
        "Wednesday, 12-Oct-22 17:50:00 GMT",
        "Wed, 12 Oct 2022 19:50:00 +0200",
        "Wed, 5 Oct 2022 17:50:00 GMT",
    ],
)
def test_each_form_of_a_date_is_understood(date: str) -> None:
    clock = ServiceClock()
    clock.hear(date)
    assert clock.time is not None
    assert clock.time.latest == parsedate_to_datetime(date).timestamp()


@pytest.mark.parametrize(
    "date", [None, "", "yesterday", "Wed, 12 Okt 2022 17:50:00 GMT", "Wed, 31 Feb 2022 17:50:00 GMT"]
)
def test_a_missing_or_damaged_date_tells_nothing(date: str | None) -> None:
    clock = ServiceClock()
    clock.hear(date)
    assert clock.time is None
