"""Print what a cluster administrator applies once for a campaign: the workflow's account and its rights.

usage: python scripts/print_permissions.py CAMPAIGN.yaml [User NAME | Group NAME] | kubectl apply -f -
Without a user or group a service account is made. Run it in the repository's root.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kveval.engines.kubernetes.manifests.permissions import manifest
from kveval.host.errors import Failure
from kveval.spec.loading import load_config


def main() -> str | None:
    """Run from the command line; return what is wrong, None if nothing is."""
    match sys.argv[1:]:
        case [campaign, *subject] if not subject or (len(subject) == 2 and subject[0] in ("User", "Group")):
            try:
                site = load_config(Path(campaign), Path("config")).campaign.cluster
            except Failure as failure:
                return str(failure)
            if site is None:
                return f"{campaign}: engine local needs no account on a cluster"
            print(manifest(site, (subject[0], subject[1]) if subject else None), end="")
            return None
    return __doc__


if __name__ == "__main__":
    sys.exit(main())
