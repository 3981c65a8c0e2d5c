"""The documents that a cluster's administrator applies once for a campaign, as text to be piped into kubectl."""

from collections.abc import Sequence
from pathlib import Path

from kveval.campaign.inheritance import campaign_values, with_site
from kveval.configuration.loading import load_config
from kveval.engines.kubernetes.manifests.permissions import manifest, namespaces
from kveval.engines.kubernetes.manifests.recorder import installed_documents
from kveval.engines.kubernetes.manifests.templates import to_text
from kveval.host.errors import Failure


class UsageError(Failure):
    """Wrong arguments of the command; the text is empty where the command's usage should be printed instead."""


def account_documents(arguments: Sequence[str]) -> str:
    """Return the documents that `CAMPAIGN.yaml [site=FILE] [namespaces | recorder | User NAME | Group NAME]` asks for.

    Raises UsageError, and ConfigError for a campaign that cannot be used.
    """
    words = [word for word in arguments[1:] if not word.startswith("site=")]
    if not arguments or not (
        words in ([], ["namespaces"], ["recorder"])
        or (len(words) == 2 and words[0] in ("User", "Group"))
    ):
        raise UsageError("")
    campaign, files = (
        arguments[0],
        [Path(word[5:]) for word in arguments[1:] if word.startswith("site=")],
    )
    source = (
        with_site(campaign_values(Path(campaign)), files[-1])
        if files
        else Path(campaign)
    )
    site = load_config(source, Path("config")).campaign.cluster
    if site is None:
        raise UsageError(f"{campaign}: engine local needs no account on a cluster")
    if words == ["namespaces"]:
        return namespaces(site)
    if words == ["recorder"]:
        return to_text(installed_documents(site))
    return manifest(site, (words[0], words[1]) if words else None)
