"""A slot is one second of UTC, whoever asks, whenever, and in how many looks, also where clocks change."""

from __future__ import annotations

import itertools
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outlive import cron, errors

BERLIN, LORD_HOWE, UTC_ZONE = "Europe/Berlin", "Australia/Lord_Howe", "UTC"
CHANGES = [
    (BERLIN, datetime(2026, 3, 29, 1, tzinfo=UTC)),
    (BERLIN, datetime(2026, 10, 25, 1, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 4, 4, 15, tzinfo=UTC)),
    (LORD_HOWE, datetime(2026, 10, 3, 15, 30, tzinfo=UTC)),
    ("America/New_York", datetime(2026, 11, 1, 6, tzinfo=UTC)),
    (UTC_ZONE, datetime(2026, 1, 1, tzinfo=UTC)),
]
EXPRESSIONS = [
    *("30 2 * * *", "45 1 * * *", "*/15 * * * *", "30 * * * *", "0 */2 * * *", "0 3 * * *", "*/20 2 * * *"),
    *("0 2-3 * * *", "15,45 1,2 * * *", "0 0 * * *", "*/30 * * * * *", "0 30 2 * * *"),
]


def at(moment: datetime) -> int:
    return int(moment.timestamp())


def utc(cron_text: str, zone: str, since: datetime, until: datetime) -> list[str]:
    found = cron.slots(cron.parse(cron_text, zone), at(since), at(until))
    return [datetime.fromtimestamp(slot, UTC).strftime("%d %H:%M") for slot in found]


@settings(max_examples=60, deadline=None)
@given(
    change=st.sampled_from(CHANGES),
    expression=st.sampled_from(EXPRESSIONS),
    cuts=st.lists(st.integers(min_value=0, max_value=72 * 3600), max_size=8),
)
def test_S25_any_division_of_time_into_looks_finds_every_slot_once(
    change: tuple[str, datetime], expression: str, cuts: list[int]
) -> None:
    zone, moment = change
    times = cron.parse(expression, zone)
    begin = at(moment - timedelta(hours=36))
    end = begin + 72 * 3600
    whole = list(cron.slots(times, begin, end))
    edges = sorted({begin, end, *(begin + cut for cut in cuts)})
    parts = [slot for a, b in itertools.pairwise(edges) for slot in cron.slots(times, a, b)]
    assert parts == whole
    assert whole == sorted(set(whole))


@pytest.mark.parametrize("expression", EXPRESSIONS)
@pytest.mark.parametrize(("zone", "moment"), CHANGES)
def test_S25_every_minute_around_a_change_of_clocks_is_a_place_to_begin(
    expression: str, zone: str, moment: datetime
) -> None:
    times = cron.parse(expression, zone)
    begin, end = at(moment - timedelta(hours=4)), at(moment + timedelta(hours=6))
    whole = list(cron.slots(times, at(moment - timedelta(days=9)), end))
    for cut in range(begin, end, 1350):
        assert list(cron.slots(times, cut, end)) == [slot for slot in whole if slot > cut]


def test_a_time_of_day_that_the_clocks_leave_out_comes_right_after_the_gap() -> None:
    day = datetime(2026, 3, 29, tzinfo=UTC)
    assert utc("30 2 * * *", BERLIN, day, day + timedelta(hours=6)) == ["29 01:00"]


def test_a_time_of_day_that_comes_twice_has_one_slot_its_first() -> None:
    day = datetime(2026, 10, 25, tzinfo=UTC)
    assert utc("30 2 * * *", BERLIN, day - timedelta(hours=2), day + timedelta(hours=6)) == ["25 00:30"]


def test_what_comes_every_so_often_goes_on_by_the_minutes_that_pass() -> None:
    for day in (datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)):
        found = utc("*/30 * * * *", BERLIN, day, day + timedelta(hours=3))
        assert len(found) == 6


@pytest.mark.parametrize(
    "expression", ["", "* * *", "61 * * * *", "0 0 30 2 *", "@hourly", "ä * * * *", "* " * 300]
)
def test_what_is_no_cron_expression_is_refused_in_words(expression: str) -> None:
    with pytest.raises(errors.InvalidInput, match="no cron expression") as refused:
        cron.parse(expression, "UTC")
    assert refused.value.field == "cron"


@pytest.mark.parametrize("zone", ["", "Europe/Berlln", "../etc/passwd", "/etc/localtime", "a\0b", "x" * 300])
def test_what_is_no_time_zone_is_refused_in_words(zone: str) -> None:
    with pytest.raises(errors.InvalidInput, match="no time zone") as refused:
        cron.parse("* * * * *", zone)
    assert refused.value.field == "timezone"
