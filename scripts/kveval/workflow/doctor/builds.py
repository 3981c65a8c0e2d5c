"""Builds that arms name: whether their environments exist, and which changed sources of a checkout are not compiled."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from kveval.engines.local.builds import is_made
from kveval.host.findings import Finding, ok, warning
from kveval.spec.builds import ArmBuild, BuildError, git
from kveval.spec.config import Config

_COMPILED = ("csrc", "cmake", "CMakeLists.txt", "rust")


def build_findings(config: Config, installed: Path) -> Iterator[Finding]:
    """Yield the findings on the builds of a campaign's arms; `installed`: the server's environment."""
    found: dict[str, tuple[ArmBuild, str]] = {}
    for cell in config.cells:
        build = config.build(cell)
        if build is not None:
            found.setdefault(build.name, (build, cell.scenario))
    for build, scenario in found.values():
        if is_made(build, installed, config.campaign.server.build):
            yield ok(f"build of {scenario}", f"{build.title}: its environment exists")
        elif build.kind == "checkout":
            yield ok(f"build of {scenario}", f"{build.title}: its environment is made in seconds when it is needed")
        else:
            said = f"{build.title}: installed by pip when it is first needed"
            yield ok(f"build of {scenario}", said, to_be_made=True)
        if changed := not_built(build, config.campaign.server.declared_version):
            said = f"{build.title} differs from the installed build in {', '.join(changed)}: this is not compiled"
            fix = "build a wheel, and name it by server.wheel"
            yield warning(f"build of {scenario}", said, fix, "not_built", changed=changed)


def not_built(build: ArmBuild, version: str) -> list[str]:
    """Return the folders of compiled sources in which a checkout differs from a release; none without a tag of it."""
    if build.kind != "checkout" or build.commit is None or build.place is None:
        return []
    commits = [f"v{version}", *([build.commit] if build.pinned else [])]
    with contextlib.suppress(BuildError):
        names = git(build.place, "diff", "--name-only", "-z", *commits, "--", *_COMPILED).decode(errors="replace")
        return sorted({name.split("/")[0] for name in names.split("\0") if name})
    return []
