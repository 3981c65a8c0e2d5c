"""The colours and markers of arms, determined by the arm's name only."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Any

from kveval.tables.cells import known_arm

# Okabe and Ito's palette (jfly.uni-koeln.de/color), which colour-blind readers can distinguish, without its yellow,
# which is hard to see on white; a dark grey for their black is the baseline's. Each arm has its own marker as well.
_KNOWN: dict[str, tuple[str, str]] = {
    "no-offload": ("#333333", "o"),
    "native-offload": ("#0072B2", "s"),
    "lmcache-local": ("#D55E00", "^"),
    "lmcache-redis": ("#E69F00", "v"),
    "lmcache-valkey": ("#CC79A7", "D"),
    "llm-d-redis": ("#009E73", "P"),
    "llm-d-valkey": ("#56B4E9", "X"),
    "fs-offload": ("#7F7F00", "<"),
    "cpu+fs-offload": ("#5B5B8C", ">"),
}
_OTHERS = ("#8F3F00", "#00634A", "#8A4B72", "#004C77", "#6B6B00", "#3F3F73")
_OTHER_MARKERS = ("p", "h", "d", "8", "H", "*")
# Mixed into the colour of an arm that is derived from a known one (native-offload-mempress).
_SHADES = (("#000000", 0.35), ("#FFFFFF", 0.35), ("#000000", 0.6))
_LINES = ("-", "--", ":", "-.")
_FILLS = ("full", "none", "left", "top")


@dataclass(frozen=True)
class ArmStyle:
    """The style of a cell: colour and marker depend on the scenario, line and filling on the size of its CPU tier."""

    colour: str
    marker: str
    line: str
    fill: str

    def line_style(self) -> dict[str, Any]:
        """Return the style as matplotlib's arguments for a line."""
        outline = {
            "marker": self.marker,
            "fillstyle": self.fill,
            "markerfacecoloralt": "white",
        }
        return {"color": self.colour, "linestyle": self.line, **outline}


def arm_style(scenario: str, tier: int = 0) -> ArmStyle:
    """Return the style of a scenario's cell; `tier` is the rank of its CPU tier's size among the campaign's, from 0.

    From the fifth size on, lines and fillings repeat with a darker colour.
    """
    root = known_arm(scenario)
    # A fixed hash, because the built-in one differs between processes.
    digest = zlib.crc32(scenario.encode())
    if root not in _KNOWN:
        colour, marker = (
            _OTHERS[digest % len(_OTHERS)],
            _OTHER_MARKERS[digest // 7 % len(_OTHER_MARKERS)],
        )
    else:
        colour, marker = _KNOWN[root]
        colour = (
            colour
            if root == scenario
            else _mixed(colour, *_SHADES[digest % len(_SHADES)])
        )
    if tier >= len(_LINES):
        colour = _mixed(colour, *_SHADES[2])
    return ArmStyle(
        colour, marker, _LINES[tier % len(_LINES)], _FILLS[tier % len(_FILLS)]
    )


def _mixed(colour: str, admixture: str, share: float) -> str:
    pairs = [
        (int(colour[at : at + 2], 16), int(admixture[at : at + 2], 16))
        for at in (1, 3, 5)
    ]
    return "#" + "".join(
        f"{round((1 - share) * own + share * added):02X}" for own, added in pairs
    )
