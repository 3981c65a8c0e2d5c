"""The context of a kubeconfig, which all jobs of one snakemake share."""

import os
from pathlib import Path

import yaml

CONTEXT_VARIABLE = "KVEVAL_KUBE_CONTEXT"
"""Environment variable of jobs: the context of the kubeconfig that was current when snakemake was started.

Somebody may switch it while a campaign is measured for hours.
"""


def current_context(kubeconfig: str | None = None) -> str:
    """Return the current context of a kubeconfig (None: of KUBECONFIG, else of ~/.kube/config); "" where there is none.

    Of several files in KUBECONFIG the first that names one counts, as for kubectl.
    """
    files = kubeconfig or os.environ.get("KUBECONFIG") or "~/.kube/config"
    for file in files.split(os.pathsep):
        try:
            content = yaml.safe_load(Path(file).expanduser().read_text())
        except (OSError, ValueError, yaml.YAMLError):
            # What is wrong with it is said where the cluster is asked.
            continue
        if isinstance(content, dict) and (context := content.get("current-context")):
            return str(context)
    return ""


def pin_context(kubeconfig: str | None = None) -> None:
    """Have this process and all that it starts use the context that is current now, unless one is pinned already."""
    if context := current_context(kubeconfig):
        os.environ.setdefault(CONTEXT_VARIABLE, context)
