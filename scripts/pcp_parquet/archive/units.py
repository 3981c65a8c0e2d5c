"""PCP's names for types, semantics and units (pmTypeStr(3), pmSemStr(3), pmUnitsStr(3) of PCP 7.2), and its numbers."""

from __future__ import annotations

(
    I32,
    U32,
    I64,
    U64,
    FLOAT,
    DOUBLE,
    STRING,
    AGGREGATE,
    AGGREGATE_STATIC,
    EVENT,
    HIGHRES_EVENT,
) = range(11)
# The metric was known and its agent could not supply it.
NO_SUPPORT = -1
TYPES = (
    *("32", "U32", "64", "U64", "float", "double", "string"),
    *(
        "aggregate",
        "static aggregate",
        "event record array",
        "highres event record array",
    ),
)
COUNTER, INSTANT, DISCRETE = 1, 3, 4
SEMANTICS = {COUNTER: "counter", INSTANT: "instant", DISCRETE: "discrete"}

_SPACE = (
    "byte",
    "Kbyte",
    "Mbyte",
    "Gbyte",
    "Tbyte",
    "Pbyte",
    "Ebyte",
    "Zbyte",
    "Ybyte",
)
_TIME = ("nanosec", "microsec", "millisec", "sec", "min", "hour")
# Units that PCP has since 7.2, with their scales from 1 on; before, these bits were 0.
_EXTRA = (
    ("temperature", ("C", "F", "K")),
    ("voltage", ("V", "mV", "uV")),
    ("current", ("A", "mA", "uA")),
    ("power", ("kW", "W", "mW", "uW")),
)


def pmid_string(pmid: int) -> str:
    """domain.cluster.item, as PCP writes it."""
    return f"{pmid >> 22 & 0x1FF}.{pmid >> 10 & 0xFFF}.{pmid & 0x3FF}"


def indom_string(indom: int) -> str:
    """domain.serial, as PCP writes it."""
    return f"{indom >> 22 & 0x1FF}.{indom & 0x3FFFFF}"


def type_name(code: int) -> str:
    """Name of a PM_TYPE_* code; an unknown code is named by its number."""
    if code == NO_SUPPORT:
        return "no support"
    return TYPES[code] if 0 <= code < len(TYPES) else f"unknown type {code}"


def semantics_name(code: int) -> str:
    """Name of a PM_SEM_* code; an unknown code is named by its number."""
    return SEMANTICS.get(code, f"unknown semantics {code}")


def units_string(packed: int) -> str:
    """The text of a packed pmUnits word, as libpcp prints it ("Kbyte / sec", "power (W)", "" if dimensionless).

    Fields from the most significant bit: dimSpace:4 dimTime:4 dimCount:4 (signed), scaleSpace:4 scaleTime:4
    (unsigned), scaleCount:4 (signed), extraUnit:5 (signed), extraScale:3 (unsigned).
    """
    dims = [_signed(packed >> shift, 4) for shift in (28, 24, 20)]
    scale_space, scale_time, scale_count = (
        packed >> 16 & 15,
        packed >> 12 & 15,
        _signed(packed >> 8, 4),
    )
    extra = _signed(packed >> 3, 5)
    count = "count" + {0: "", 1: " x 10"}.get(scale_count, f" x 10^{scale_count}")
    names = (
        _SPACE[scale_space] if scale_space < len(_SPACE) else f"space-{scale_space}",
        _TIME[scale_time] if scale_time < len(_TIME) else f"time-{scale_time}",
        count,
    )
    above = [_extra_unit(extra, packed & 7)] if extra > 0 else []
    below = [_extra_unit(-extra, packed & 7)] if extra < 0 else []
    above += [
        _power(name, dim) for name, dim in zip(names, dims, strict=True) if dim > 0
    ]
    below += [
        _power(name, -dim) for name, dim in zip(names, dims, strict=True) if dim < 0
    ]
    if not above and not below:
        return count if scale_count else ""
    return " ".join([*above, "/", *below] if below else above)


def _extra_unit(unit: int, scale: int) -> str:
    if unit > len(_EXTRA):
        return f"extra-{unit}"
    name, scales = _EXTRA[unit - 1]
    return f"{name} ({scales[scale - 1] if 0 < scale <= len(scales) else f'scale-{scale}'})"


def _signed(value: int, bits: int) -> int:
    value &= (1 << bits) - 1
    return value - (1 << bits) if value >> bits - 1 else value


def _power(name: str, exponent: int) -> str:
    return name if exponent == 1 else f"{name}^{exponent}"
