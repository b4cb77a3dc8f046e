"""MySQL's functions of dates. A date is a text as MySQL writes it; what is no date is NULL."""

import calendar
import re
from collections.abc import Callable
from datetime import date, datetime, timedelta

from envs.dbbench.values import SqlValue, to_integer, to_number, to_text

_DATE = re.compile(
    r"\s*(\d{4})[-/.](\d{1,2})[-/.](\d{1,2})(?:[ T]+(\d{1,2}):(\d{1,2})(?::(\d{1,2})(?:\.(\d{1,6}))?)?)?"
)
_COMPACT = re.compile(r"\s*(\d{4})(\d{2})(\d{2})(?:(\d{2})(\d{2})(\d{2}))?\s*$")
_TIME = re.compile(r"\s*(-?)(\d{1,3}):(\d{1,2})(?::(\d{1,2}))?")
_UNITS = {"SECOND": 1, "MINUTE": 60, "HOUR": 3600, "DAY": 86400, "WEEK": 7 * 86400}
_MONTHS = {"MONTH": 1, "QUARTER": 3, "YEAR": 12}
_HAS_TIME = re.compile(r"%[HIlhkMSfTrpX]")


def moment(value: SqlValue) -> datetime | None:
    """The moment that a text names."""
    text = to_text(value)
    match = _DATE.match(text) or _COMPACT.match(text)
    if match is None:
        return None
    numbers = [int(part) for part in match.groups()[:6] if part is not None]
    try:
        return datetime(*numbers)  # type: ignore[arg-type]
    except ValueError:
        return None


def _written(when: datetime, *, has_time: bool) -> str:
    return when.strftime("%Y-%m-%d %H:%M:%S") if has_time else f"{when.date().isoformat()}"


def _part(get: Callable[[datetime], SqlValue]) -> Callable[[SqlValue], SqlValue]:
    def of(value: SqlValue) -> SqlValue:
        when = moment(value)
        return None if when is None else get(when)

    return of


def _clock(value: SqlValue) -> tuple[int, int, int] | None:
    when = moment(value)
    if when is not None:
        return when.hour, when.minute, when.second
    match = _TIME.match(to_text(value))
    return None if match is None else (int(match[2]), int(match[3]), int(match[4] or 0))


def _clock_part(index: int) -> Callable[[SqlValue], SqlValue]:
    def of(value: SqlValue) -> SqlValue:
        clock = _clock(value)
        return None if clock is None else clock[index]

    return of


def year(value: SqlValue) -> int | None:
    """Of a date. A year by itself is no date in MySQL either."""
    when = moment(value)
    return None if when is None else when.year


def time(value: SqlValue) -> str | None:
    clock = _clock(value)
    return None if clock is None else "{:02d}:{:02d}:{:02d}".format(*clock)


def time_to_sec(value: SqlValue) -> int | None:
    clock = _clock(value)
    return None if clock is None else clock[0] * 3600 + clock[1] * 60 + clock[2]


def datediff(one: SqlValue, other: SqlValue) -> int | None:
    first, second = moment(one), moment(other)
    return None if first is None or second is None else (first.date() - second.date()).days


def timestampdiff(unit: SqlValue, start: SqlValue, end: SqlValue) -> int | None:
    first, second, name = moment(start), moment(end), to_text(unit).upper()
    if first is None or second is None:
        return None
    if name in _UNITS:
        return int((second - first).total_seconds() / _UNITS[name])
    if name not in _MONTHS:
        return None
    sign = 1 if second >= first else -1
    early, late = (first, second) if sign > 0 else (second, first)
    months = (late.year - early.year) * 12 + late.month - early.month
    months -= (late.day, late.time()) < (early.day, early.time())
    return sign * (months // _MONTHS[name])


def date_add(value: SqlValue, amount: SqlValue, unit: SqlValue) -> str | None:
    when, name, number = moment(value), to_text(unit).upper(), to_number(amount) or 0
    if when is None:
        return None
    has_time = ":" in to_text(value) or name in ("SECOND", "MINUTE", "HOUR")
    try:
        if name in _UNITS:
            return _written(when + timedelta(seconds=number * _UNITS[name]), has_time=has_time)
        if name not in _MONTHS:
            return None
        months = when.year * 12 + when.month - 1 + int(number) * _MONTHS[name]
        day = min(when.day, calendar.monthrange(months // 12, months % 12 + 1)[1])
        return _written(when.replace(year=months // 12, month=months % 12 + 1, day=day), has_time=has_time)
    except (OverflowError, ValueError):
        return None


def last_day(value: SqlValue) -> str | None:
    when = moment(value)
    if when is None:
        return None
    return _written(when.replace(day=calendar.monthrange(when.year, when.month)[1]), has_time=False)


def str_to_date(text: SqlValue, layout: SqlValue) -> str | None:
    """`layout` as `strptime` has it: sqlglot has translated MySQL's."""
    pattern = to_text(layout)
    try:
        when = datetime.strptime(to_text(text).strip(), pattern)
    except ValueError:
        return None
    return _written(when, has_time=_HAS_TIME.search(pattern) is not None)


def date_format(value: SqlValue, layout: SqlValue) -> str | None:
    when = moment(value)
    return None if when is None else when.strftime(to_text(layout)[:200])


def makedate(in_year: SqlValue, day: SqlValue) -> str | None:
    number = to_integer(day) or 0
    if number <= 0:
        return None
    try:
        return (date(to_integer(in_year) or 0, 1, 1) + timedelta(days=number - 1)).isoformat()
    except (OverflowError, ValueError):
        return None


DATES: dict[str, Callable[..., SqlValue]] = {
    "year": year,
    "month": _part(lambda when: when.month),
    "day": _part(lambda when: when.day),
    "quarter": _part(lambda when: (when.month + 2) // 3),
    "dayofweek": _part(lambda when: when.isoweekday() % 7 + 1),
    "weekday": _part(lambda when: when.weekday()),
    "dayofyear": _part(lambda when: when.timetuple().tm_yday),
    "dayname": _part(lambda when: calendar.day_name[when.weekday()]),
    "hour": _clock_part(0),
    "minute": _clock_part(1),
    "second": _clock_part(2),
    "date": _part(lambda when: _written(when, has_time=False)),
    "datetime": _part(lambda when: _written(when, has_time=True)),
    "time": time,
    "time_to_sec": time_to_sec,
    "last_day": last_day,
    "datediff": datediff,
    "timestampdiff": timestampdiff,
    "date_add": date_add,
    "str_to_date": str_to_date,
    "date_format": date_format,
    "makedate": makedate,
    "curdate": lambda: date.today().isoformat(),
    "curtime": lambda: datetime.now().strftime("%H:%M:%S"),
    "now": lambda: _written(datetime.now(), has_time=True),
}
