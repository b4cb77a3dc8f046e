"""MySQL's functions of numbers. A text counts as the number it starts with; what has no value is NULL."""

import math
import random
from collections.abc import Callable

from envs.dbbench.values import SqlValue, clamped, compare, rounded, to_integer, to_number, to_text

Number = int | float


def _of(value: SqlValue) -> Number:
    number = to_number(value)
    return 0 if number is None else number


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _on_reals(function: Callable[[float], float], *, above: float = -math.inf) -> Callable[[SqlValue], SqlValue]:
    def applied(value: SqlValue) -> float | None:
        number = float(_of(value))
        try:
            return _finite(function(number)) if number >= above else None
        except (ValueError, OverflowError):
            return None

    return applied


def decimal(value: SqlValue, decimals: SqlValue = 0) -> Number:
    """`CAST(… AS DECIMAL(p, s))`: rounded to s digits; an integer if s is 0."""
    places = max(0, min(30, to_integer(decimals) or 0))
    result = rounded(float(_of(value)), places)
    return clamped(result) if places == 0 else result


def divide(one: SqlValue, other: SqlValue) -> float | None:
    divisor = _of(other)
    return None if divisor == 0 else _finite(_of(one) / divisor)


def int_divide(one: SqlValue, other: SqlValue) -> int | None:
    divisor = _of(other)
    return None if divisor == 0 else clamped(math.trunc(_of(one) / divisor))


def mod(one: SqlValue, other: SqlValue) -> Number | None:
    """The sign is that of the first."""
    dividend, divisor = _of(one), _of(other)
    if divisor == 0:
        return None
    result = math.fmod(dividend, divisor)
    return int(result) if isinstance(dividend, int) and isinstance(divisor, int) else result


def round_(value: SqlValue, decimals: SqlValue = 0) -> Number:
    """A real number half to even, of what it is times a power of ten, as MySQL rounds its reals."""
    number, places = _of(value), max(-30, min(30, to_integer(decimals) or 0))
    if isinstance(number, int):
        return clamped(rounded(float(number), places)) if places < 0 else number
    scale = 10.0 ** abs(places)
    scaled = number * scale if places >= 0 else number / scale
    if not math.isfinite(scaled) or abs(scaled) >= 2.0**52:
        return number
    return round(scaled) / scale if places >= 0 else round(scaled) * scale


def truncate(value: SqlValue, decimals: SqlValue) -> Number:
    number, places = _of(value), max(-30, min(30, to_integer(decimals) or 0))
    scaled = math.trunc(float(f"{float(number) * 10.0**places:.12g}"))
    result = scaled / 10.0**places
    return clamped(result) if isinstance(number, int) else result


def _whole(function: Callable[[float], int]) -> Callable[[SqlValue], Number]:
    def applied(value: SqlValue) -> Number:
        number = _of(value)
        if isinstance(number, int):
            return number
        return float(function(number)) if math.isfinite(number) else number

    return applied


def pow_(base: SqlValue, exponent: SqlValue) -> float | None:
    try:
        result = float(_of(base)) ** float(_of(exponent))
    except (OverflowError, ZeroDivisionError):
        return None
    return None if isinstance(result, complex) else _finite(result)


def log(*arguments: SqlValue) -> float | None:
    """Of one argument the natural logarithm; of two, that of the second to the base of the first."""
    numbers = [float(_of(value)) for value in arguments]
    if len(numbers) not in (1, 2) or min(numbers) <= 0 or (len(numbers) == 2 and numbers[0] == 1):
        return None
    return math.log(numbers[0]) if len(numbers) == 1 else math.log(numbers[1], numbers[0])


def _extreme(sign: int) -> Callable[..., SqlValue]:
    def chosen(*values: SqlValue) -> SqlValue:
        best = values[0]
        for value in values[1:]:
            if (compare(value, best) or 0) * sign > 0:
                best = value
        return best

    return chosen


def format_(value: SqlValue, decimals: SqlValue) -> str:
    """With commas between thousands."""
    places = max(0, min(30, to_integer(decimals) or 0))
    return f"{rounded(float(_of(value)), places):,.{places}f}"


def conv(value: SqlValue, old: SqlValue, new: SqlValue) -> str | None:
    bases = [to_integer(old) or 0, to_integer(new) or 0]
    if not all(2 <= base <= 36 for base in bases):
        return None
    try:
        number = int(to_text(value)[:64], bases[0])
    except ValueError:
        return "0"
    digits = ""
    while number > 0:
        number, digit = divmod(number, bases[1])
        digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZ"[digit] + digits
    return digits or "0"


NUMBERS: dict[str, Callable[..., SqlValue]] = {
    "number": to_number,
    "int": to_integer,
    "decimal": decimal,
    "divide": divide,
    "int_divide": int_divide,
    "mod": mod,
    "round": round_,
    "truncate": truncate,
    "ceil": _whole(math.ceil),
    "floor": _whole(math.floor),
    "abs": lambda value: abs(_of(value)),
    "sign": lambda value: (_of(value) > 0) - (_of(value) < 0),
    "pow": pow_,
    "sqrt": _on_reals(math.sqrt, above=0.0),
    "exp": _on_reals(math.exp),
    "log": log,
    "sin": _on_reals(math.sin),
    "cos": _on_reals(math.cos),
    "radians": _on_reals(math.radians),
    "degrees": _on_reals(math.degrees),
    "pi": lambda: math.pi,
    "rand": lambda *_: random.random(),
    "greatest": _extreme(1),
    "least": _extreme(-1),
    "format": format_,
    "conv": conv,
    "bin": lambda value: conv(value, 10, 2),
}
