"""The one way to hash a value; equal hashes mean equal content."""

import hashlib
import json
from typing import Any


def content_hash(value: Any, digits: int = 16, *, spaced: bool = False) -> str:
    """Return the first hex digits of the SHA-256 of a value's JSON: keys sorted, no NaN.

    `spaced`: the JSON has spaces after separators, as in hashes of existing stores; new hashes have none. Raises
    ValueError for NaN and infinities, TypeError for values that JSON lacks.
    """
    separators = None if spaced else (",", ":")
    text = json.dumps(value, sort_keys=True, separators=separators, allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()[:digits]
