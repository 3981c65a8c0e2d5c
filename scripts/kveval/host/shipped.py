"""The folders `config` and `manifests`, which come with the library: those of its checkout, or their installed copies."""

from pathlib import Path
from typing import Literal

_LIBRARY = Path(__file__).resolve().parents[1]


def shipped_folder(
    name: Literal["config", "manifests"], library: Path = _LIBRARY
) -> Path:
    """Return the folder of this name that belongs to the library.

    In a checkout it is beside `scripts`, whose package `library` is. An installed package has a copy, which setup.py
    put into `kveval/data`.
    """
    checkout = library.parents[1]
    if (checkout / "Snakefile").is_file():
        return checkout / name
    return library / "data" / name
