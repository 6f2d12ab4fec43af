"""Fields that turn Python values into plain ones and back."""

import datetime as dt


class Integer:
    """A whole number."""

    def serialize(self, value):
        return None if value is None else int(value)

    def deserialize(self, value):
        return int(value)


class TimeDelta:
    """A duration, as a whole number of a unit such as ``milliseconds``."""

    def __init__(self, precision="seconds"):
        self.precision = precision

    def serialize(self, value):
        if value is None:
            return None
        base_unit = dt.timedelta(**{self.precision: 1})
        return int(value.total_seconds() / base_unit.total_seconds())

    def deserialize(self, value):
        return dt.timedelta(**{self.precision: int(value)})
