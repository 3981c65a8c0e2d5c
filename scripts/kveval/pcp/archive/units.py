"""PCP's names for types, semantics and units (pmUnitsStr(3), pmTypeStr(3), pmSemStr(3))."""

from __future__ import annotations

I32, U32, I64, U64, FLOAT, DOUBLE, STRING, AGGREGATE, AGGREGATE_STATIC, EVENT, HIGHRES_EVENT = range(11)
TYPES = (
    *("32", "U32", "64", "U64", "float", "double", "string"),
    *("aggregate", "static aggregate", "event record array", "highres event record array"),
)
SEMANTICS = {1: "counter", 3: "instant", 4: "discrete"}

_SPACE = ("byte", "Kbyte", "Mbyte", "Gbyte", "Tbyte", "Pbyte", "Ebyte", "Zbyte", "Ybyte")
_TIME = ("nanosec", "microsec", "millisec", "sec", "min", "hour")


def type_name(code: int) -> str:
    """Name of a PM_TYPE_* code; an unknown code is named by its number."""
    return TYPES[code] if 0 <= code < len(TYPES) else f"unknown type {code}"


def semantics_name(code: int) -> str:
    """Name of a PM_SEM_* code; an unknown code is named by its number."""
    return SEMANTICS.get(code, f"unknown semantics {code}")


def units_string(packed: int) -> str:
    """The text of a packed pmUnits word, as libpcp prints it ("Kbyte / sec", "count x 10^6", "" if dimensionless).

    Fields from the most significant bit: dimSpace:4 dimTime:4 dimCount:4 (signed), scaleSpace:4 scaleTime:4
    (unsigned), scaleCount:4 (signed), pad:8.
    """
    dims = [_signed4(packed >> shift) for shift in (28, 24, 20)]
    scale_space, scale_time, scale_count = packed >> 16 & 15, packed >> 12 & 15, _signed4(packed >> 8)
    names = (
        _SPACE[scale_space] if scale_space < len(_SPACE) else f"space-{scale_space}",
        _TIME[scale_time] if scale_time < len(_TIME) else f"time-{scale_time}",
        f"count{_power_of_ten(scale_count)}",
    )
    above = [_power(name, dim) for name, dim in zip(names, dims, strict=True) if dim > 0]
    below = [_power(name, -dim) for name, dim in zip(names, dims, strict=True) if dim < 0]
    if not above and not below:
        return _power_of_ten(scale_count).strip()
    return " ".join([*above, "/", *below] if below else above)


def _signed4(value: int) -> int:
    value &= 15
    return value - 16 if value > 7 else value


def _power(name: str, exponent: int) -> str:
    return name if exponent == 1 else f"{name}^{exponent}"


def _power_of_ten(exponent: int) -> str:
    return {0: "", 1: " x 10"}.get(exponent, f" x 10^{exponent}")
