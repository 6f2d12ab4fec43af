import datetime as dt

import pytest
from tinyfields import fields


def test_integer_round_trip():
    assert fields.Integer().deserialize(fields.Integer().serialize(7)) == 7


@pytest.mark.parametrize("precision", ["days", "hours", "minutes", "seconds", "milliseconds"])
def test_timedelta_of_one_unit(precision):
    field = fields.TimeDelta(precision)
    assert field.serialize(dt.timedelta(**{precision: 1})) == 1
    assert field.deserialize(1) == dt.timedelta(**{precision: 1})


def test_timedelta_counts_whole_units():
    assert fields.TimeDelta("days").serialize(dt.timedelta(days=1, seconds=1)) == 1


def test_timedelta_none():
    assert fields.TimeDelta().serialize(None) is None
