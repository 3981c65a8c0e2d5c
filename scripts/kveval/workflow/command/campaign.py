"""The campaign that a command was given: a file or the default one, with a site and changed values."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kveval.campaign.problems import closest
from kveval.configuration.loading import load_config
from kveval.host.errors import Failure
from kveval.workflow.campaign_source import complete_values, requested_campaign
from kveval.workflow.command.checkout import Checkout

if TYPE_CHECKING:
    from kveval.configuration.config import Config

STORE = Path("results/measurements")


class OptionError(Failure):
    """The value of an option makes no sense; the message says what would be right."""


@dataclass(frozen=True)
class CampaignOptions:
    """The campaign as the options of a command name it.

    `file`: None for the default campaign; `site`: file of a cluster's settings; `changes`: KEY=VALUE that override the
    campaign's; `directory`: the working directory, None for the checkout.
    """

    file: Path | None = None
    site: Path | None = None
    changes: Sequence[str] = ()
    directory: Path | None = None


@dataclass(frozen=True)
class CampaignContext:
    """A campaign with the checkout it is read with; paths are relative to the working directory.

    `start`: the folder in which the command was called; `file`, `site` and `changes` as given; `source`: its file, or
    its values if they are not those of a file.
    """

    checkout: Checkout
    start: Path
    file: Path | None
    site: Path | None
    changes: Sequence[str]
    source: Path | dict[str, Any]

    @cached_property
    def values(self) -> dict[str, Any]:
        """The campaign's complete values. Raises ConfigError for mistakes in what it extends."""
        return complete_values(self.source)

    @cached_property
    def config(self) -> Config:
        """The campaign, read and checked. Raises ConfigError with all mistakes."""
        return load_config(self.source, self.checkout.catalogues)

    @property
    def snakemake_words(self) -> list[str]:
        """The words that name it in a command line of snakemake, to stand after the targets."""
        words = [] if self.file is None else ["--configfile", self.file.as_posix()]
        settings = [] if self.site is None else [f"site={self.site.as_posix()}"]
        settings += self.changes
        return [*words, "--config", *settings] if settings else words

    @property
    def words(self) -> list[str]:
        """The words that name it in a command line of kveval."""
        words = [] if self.file is None else [self.file.as_posix()]
        words += [] if self.site is None else ["--site", self.site.as_posix()]
        for change in self.changes:
            words += ["--set", change]
        return words

    @property
    def logs(self) -> Path:
        """The folder of its logs."""
        return Path("logs", self.config.campaign.name)

    @property
    def results(self) -> Path:
        """The folder of its results."""
        return Path(self.config.campaign.results)


@contextlib.contextmanager
def working_on(options: CampaignOptions) -> Iterator[CampaignContext]:
    """Yield the campaign of these options; meanwhile its working directory is that of the process.

    Raises ConfigError, OptionError.
    """
    here = Path.cwd()
    folders = [here]
    if options.directory is not None:
        folders.insert(0, options.directory.absolute())
    checkout = Checkout.from_folders(*folders)
    if warning := checkout.warning:
        print(warning, file=sys.stderr)
    directory = folders[0] if options.directory else checkout.root or here
    if not directory.is_dir():
        message = f"--directory {options.directory}: there is no such folder"
        raise OptionError(message, code="no_folder")
    campaign = None if options.file is None else campaign_file(options.file, checkout)
    paths = {
        name: None if path is None else path.absolute()
        for name, path in (("file", campaign), ("site", options.site))
    }
    with contextlib.chdir(directory):
        file, site = (
            None if path is None else Path(os.path.relpath(path))
            for path in paths.values()
        )
        near = checkout.relative()
        source = requested_campaign(
            file,
            near.default_campaign,
            site=site,
            overrides=changed_values(options.changes),
        )
        yield CampaignContext(near, here, file, site, options.changes, source)


def campaign_file(campaign: Path, checkout: Checkout) -> Path:
    """Return a campaign's file, also of the name of one that is shipped. Raises OptionError for an unknown name."""
    name = str(campaign)
    is_path = campaign.suffix in (".yaml", ".yml") or campaign.name != name
    if is_path or campaign.is_file():
        return campaign
    shipped = {file.stem: file for file in checkout.campaigns.glob("*.yaml")}
    if name not in shipped:
        hint, _ = closest(name, shipped)
        message = f"there is neither a file {name} nor a campaign of that name; {hint}"
        raise OptionError(message, code="no_campaign")
    return shipped[name]


def changed_values(changes: Sequence[str]) -> dict[str, Any]:
    """Return the values that KEY=VALUE name; a value is written as in a campaign's file. Raises OptionError."""
    values: dict[str, Any] = {}
    for change in changes:
        key, equals, text = change.partition("=")
        if not (key and equals):
            raise OptionError(f"--set {change}: write KEY=VALUE", code="no_change")
        try:
            values[key] = yaml.safe_load(text)
        except yaml.YAMLError:
            raise OptionError(
                f"--set {change}: the value is not YAML", code="no_yaml"
            ) from None
    return values
