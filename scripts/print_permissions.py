"""Print the documents that a cluster administrator applies once: namespaces; the account and its rights; a recorder.

usage: python scripts/print_permissions.py CAMPAIGN.yaml [site=FILE] namespaces | kubectl create -f -
       python scripts/print_permissions.py CAMPAIGN.yaml [site=FILE] recorder | kubectl apply -f -
       python scripts/print_permissions.py CAMPAIGN.yaml [site=FILE] [User NAME | Group NAME] | kubectl apply -f -
`create` leaves existing namespaces as they are. Without a user or group a service account is made. Run it in the
repository's root.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from kveval.host.errors import Failure
from kveval.workflow.service_account import account_documents


def main() -> str | None:
    """Run from the command line; return what is wrong, None if nothing is."""
    try:
        print(account_documents(sys.argv[1:]), end="")
    except Failure as failure:
        return str(failure) or __doc__
    return None


if __name__ == "__main__":
    sys.exit(main())
