"""Everything that a campaign would put on a cluster, rendered before it starts."""

from dataclasses import dataclass

from kveval.campaign.release import Release
from kveval.campaign.site import Cluster
from kveval.campaign.specification import Specification
from kveval.configuration.config import Config
from kveval.engines.kubernetes.api.kinds import Document, Kind, kind_of
from kveval.engines.kubernetes.manifests.lifetime import run_lifetime
from kveval.engines.kubernetes.manifests.recorder import recorder_with_lifetime
from kveval.engines.kubernetes.manifests.rendering import (
    context_of,
    download_job,
    load_job,
    render,
)


@dataclass(frozen=True)
class CellPlan:
    """One run of a cell: its specification, the servers' documents, and those of load, download and end."""

    path: str
    specification: Specification
    serving: tuple[Document, ...]
    driving: tuple[Document, ...]


@dataclass(frozen=True)
class CampaignDocuments:
    """A campaign on its site; `recording`: the documents that all cells share."""

    name: str
    site: Cluster
    cells: tuple[CellPlan, ...]
    recording: tuple[Document, ...]
    releases: tuple[Release, ...] = ()
    """The llm-d releases of the campaign's cells."""

    @property
    def documents(self) -> tuple[Document, ...]:
        """All documents, each object once."""
        every = [
            *self.recording,
            *(one for cell in self.cells for one in (*cell.serving, *cell.driving)),
        ]
        unique = {
            (
                kind_of(one),
                one["metadata"].get("namespace", ""),
                one["metadata"]["name"],
            ): one
            for one in reversed(every)
        }
        return tuple(reversed(unique.values()))

    @property
    def kinds(self) -> list[Kind]:
        """The kinds that the cluster has to serve: those of the documents, and those that an endpoint picker needs."""
        groups = dict.fromkeys(
            group
            for cell in self.cells
            for group in cell.specification.on_cluster.objectives
        )
        return [
            *dict.fromkeys(map(kind_of, self.documents)),
            *(Kind(f"{group}/v1alpha2", "InferenceObjective") for group in groups),
        ]


def planned(config: Config, site: Cluster | None = None) -> CampaignDocuments:
    """Render the first run of each cell of a campaign with engine kubernetes. `site`: by default the campaign's."""
    site, name = site or config.campaign.cluster, config.campaign.name
    assert site is not None
    cells = []
    for cell in config.cells:
        specification = config.specification(cell)
        context = context_of(specification, site, 1, name)
        driving = [
            run_lifetime(context),
            *load_job(context, level=0, argv=["guidellm", "--version"], env={}),
        ]
        if site.model_cache is not None and not specification.miniature:
            driving.append(download_job(context))
        cells.append(
            CellPlan(cell.path, specification, render(context), tuple(driving))
        )
    named = dict.fromkeys(cell.specification.on_cluster.release for cell in cells)
    releases = tuple(config.catalogue.releases[release] for release in named)
    return CampaignDocuments(
        name,
        site,
        tuple(cells),
        recorder_with_lifetime(name, site),
        releases,
    )
