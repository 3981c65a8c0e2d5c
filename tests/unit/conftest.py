"""What all unit tests share."""

import functools
import os
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
import yaml


@pytest.fixture(autouse=True, scope="session")
def _no_power_failure() -> Iterator[None]:
    """Waiting until data are on the disk shows only after a power failure, and takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


@pytest.fixture(autouse=True, scope="session")
def _files_parsed_once() -> Iterator[None]:
    """Hundreds of tests read the shipped catalogues; each gets a copy of its own of what was parsed once."""
    parse = yaml.load

    @functools.cache
    def parsed(content: bytes, loader: type[Any]) -> bytes:
        return pickle.dumps(parse(content, Loader=loader))

    def load(content: Any, *given: type[Any], **named: type[Any]) -> Any:
        (loader,) = (*given, *named.values())
        return (
            pickle.loads(parsed(content, loader))
            if isinstance(content, bytes)
            else parse(content, loader)
        )

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(yaml, "load", load)
        yield
