"""Print what a cluster administrator applies once for a campaign: the workflow's account and its rights.

usage: python scripts/print_permissions.py CAMPAIGN.yaml [User NAME | Group NAME] | kubectl apply -f -
Without a user or group a service account is made. Run it in the repository's root.
"""

import argparse
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kveval.engines.kubernetes.manifests.permissions import manifest
from kveval.host.errors import Failure
from kveval.spec.loading import load_config


def main() -> str | None:
    """Run from the command line; return what is wrong, None if nothing is."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("campaign", type=Path)
    parser.add_argument("kind", nargs="?", choices=["User", "Group"])
    parser.add_argument("name", nargs="?")
    given = parser.parse_args()
    if given.kind and not given.name:
        parser.error(f"which {given.kind}? Give its name")
    try:
        site = load_config(given.campaign, Path("config")).campaign.cluster
    except Failure as failure:
        return str(failure)
    if site is None:
        return f"{given.campaign}: engine local needs no account on a cluster"
    print(manifest(site, (given.kind, given.name) if given.kind else None), end="")
    return None


if __name__ == "__main__":
    sys.exit(main())
