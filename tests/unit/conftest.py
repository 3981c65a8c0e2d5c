"""What all unit tests share."""

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True, scope="session")
def _no_power_failure() -> Iterator[None]:
    """Waiting until data are on the disk shows only after a power failure, and takes seconds."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield
