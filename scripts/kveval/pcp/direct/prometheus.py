"""Values of an exporter, under the names that PCP's openmetrics agent gives them.

Names, semantics and units follow pmdaopenmetrics(1) of PCP 6 and 7: openmetrics.SOURCE.NAME with a colon as a dot, an
instance "NUMBER LABEL:VALUE ..." with the labels in order, and units by the words of the name.
"""

from collections.abc import Iterator, Mapping

from prometheus_client.parser import text_string_to_metric_families

from kveval.pcp.direct.samples import About, DirectSample

_UNITS = {"seconds": "sec", "microseconds": "microsec", "bytes": "byte"}
_COUNTED = {"total", "count", "sum"}


class Exporter:
    """One source of metrics; numbers its instances in the order in which they appear."""

    def __init__(self, source: str) -> None:
        self._source = source
        self._numbers: dict[str, dict[str, int]] = {}
        self._known: dict[str, About] = {}

    def read(self, text: str) -> Iterator[DirectSample]:
        """Yield every value of a text in Prometheus' format. ValueError where it is not one."""
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                yield self.sample(
                    sample.name,
                    sample.labels,
                    float(sample.value),
                    family.type,
                    family.documentation,
                )

    def sample(
        self,
        name: str,
        labels: Mapping[str, str],
        value: float,
        kind: str = "unknown",
        documentation: str = "",
    ) -> DirectSample:
        """Return one value; `kind` and `documentation` are its family's type and help."""
        metric = f"openmetrics.{self._source}.{name.replace(':', '.')}"
        about = self._known.get(metric)
        if about is None:
            about = self._known[metric] = describe(name, kind, documentation)
        return DirectSample(metric, self._instance(metric, labels), value, about)

    def _instance(self, metric: str, labels: Mapping[str, str]) -> str | None:
        if not labels:
            return None
        text = " ".join(f"{name}:{value}" for name, value in sorted(labels.items()))
        numbers = self._numbers.setdefault(metric, {})
        return f"{numbers.setdefault(text, len(numbers))} {text}"


def describe(name: str, kind: str, documentation: str) -> About:
    """Return the description that the openmetrics agent derives from a sample's name and its family's type."""
    words = name.split("_")
    bucket = kind == "histogram" and "bucket" in words
    counter = kind == "counter" or bool(_COUNTED & set(words)) or bucket
    if bucket or (kind in ("histogram", "summary") and "count" in words):
        units = "count"
    else:
        units = next((unit for word, unit in _UNITS.items() if word in words), "")
    return About(
        "counter" if counter else "instant", units, documentation.partition("\n")[0]
    )
