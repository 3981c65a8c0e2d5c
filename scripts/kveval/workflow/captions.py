"""How `snakemake --report` shows a figure."""

from typing import Any

from kveval.report.figures.names import FAMILIES, FigureName, caption_file


def captioned(figure: FigureName) -> dict[str, Any]:
    """Return a figure's caption, category and labels, as Snakemake's `report` takes them."""
    label = FAMILIES[figure.family][figure.template].replace(", {model}", "")
    return {
        "caption": str(caption_file(figure.template)),
        "category": figure.family.capitalize(),
        "labels": {"figure": label, "model": figure.model or "all"},
    }
