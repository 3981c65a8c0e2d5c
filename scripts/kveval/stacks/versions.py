"""Versions that programs report, against those that a campaign declares."""

from packaging.version import InvalidVersion, Version


def same_release(reported: str, declared: str) -> bool:
    """Tell whether a reported version is the declared release; it may also name a build (+cpu) or LMCache's commit."""
    try:
        # LMCache reports the release and the commit that it was built from: 0.5.6-g3e11e108.
        return Version(reported.partition("-g")[0]).public == Version(declared).public
    except InvalidVersion:
        return reported == declared
