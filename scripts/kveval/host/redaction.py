"""Secrets: programs get them through their environment, and they are removed from everything that is stored."""

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote

from kveval.host.files import write_bytes

_TEXT_FILES = ("*.log", "*.out", "*.json", "*.txt", "*.fatal")


@dataclass(frozen=True)
class Redactor:
    """Replaces the values of secrets by their names; `secrets`: values by name of the environment variable."""

    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def of(
        cls, names: Iterable[str], environment: Mapping[str, str] = os.environ
    ) -> "Redactor":
        """Return a redactor for those of the named variables that are set (by default in this process)."""
        return cls({name: environment[name] for name in names if environment.get(name)})

    def _forms(self) -> list[tuple[str, str]]:
        """Return (written form, name) of all values; the longest first, so that no part of a value remains."""
        forms = {
            (form, name)
            for name, value in self.secrets.items()
            for form in (
                value,
                json.dumps(value)[1:-1],
                repr(value)[1:-1],
                quote(value, safe=""),
            )
        }
        return sorted(forms, key=lambda pair: len(pair[0]), reverse=True)

    def text(self, text: str) -> str:
        """Return `text` with every secret replaced by its name, also in the escaped forms of JSON and URLs."""
        for form, name in self._forms():
            text = text.replace(form, f"[{name}]")
        return text

    def found_in(self, text: str) -> list[str]:
        """Return the names of the secrets whose values `text` contains."""
        return sorted({name for form, name in self._forms() if form in text})

    def file(self, path: Path) -> None:
        """Replace secrets in a file, in place."""
        if not self.secrets:
            return
        content = cleaned = path.read_bytes()
        for form, name in self._forms():
            cleaned = cleaned.replace(form.encode(), f"[{name}]".encode())
        if cleaned != content:
            write_bytes(path, cleaned)

    def folder(self, folder: Path) -> None:
        """Replace secrets in every text file below a folder; a file that cannot be cleaned is removed."""
        for path in (path for pattern in _TEXT_FILES for path in folder.rglob(pattern)):
            if path.is_file() and not path.is_symlink():
                try:
                    self.file(path)
                except OSError:
                    path.unlink(missing_ok=True)
