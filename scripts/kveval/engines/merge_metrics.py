"""Prints the metrics pages of several servers as one; every sample gets a label `replica` with the server's number.

On a cluster it runs in the recorder's pods, as a source of PCP's openmetrics agent: `merge_metrics.py URL...`. Standard
library only.
"""

import re
import sys
import urllib.request
from collections.abc import Sequence

_SAMPLE = re.compile(r"^([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S.*)$")
_SUFFIX = re.compile(r"_(?:bucket|sum|count|total|created)$")


def merged(pages: Sequence[str]) -> str:
    """Return pages of Prometheus text as one; the samples of a family stay together, as the format requires."""
    heads: dict[str, list[str]] = {}
    samples: dict[str, list[str]] = {}
    for number, page in enumerate(pages):
        own_heads: dict[str, list[str]] = {}
        for line in page.splitlines():
            words = line.split(maxsplit=3)
            if len(words) >= 3 and words[:2] in (["#", "HELP"], ["#", "TYPE"]):
                own_heads.setdefault(_family(words[2]), []).append(line)
                continue
            match = _SAMPLE.match(line)
            if match is not None:
                name, labels, value = match.groups()
                own = f'replica="{number}"' + (f",{labels}" if labels else "")
                samples.setdefault(_family(name), []).append(f"{name}{{{own}}} {value}")
        heads = own_heads | heads
    lines = [
        line
        for family, family_samples in samples.items()
        for line in (*heads.get(family, []), *family_samples)
    ]
    return "\n".join([*lines, ""])


def _family(name: str) -> str:
    return _SUFFIX.sub("", name)


def main(urls: Sequence[str]) -> None:
    """Fetch the pages and print them merged; fail if a server does not answer, so that no total is incomplete."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    pages = []
    for url in urls:
        with opener.open(url, timeout=5.0) as answer:
            pages.append(answer.read().decode(errors="replace"))
    sys.stdout.write(merged(pages))


if __name__ == "__main__":
    main(sys.argv[1:])
