"""Copy a finished campaign's report into docs/examples, and make the README's picture of it.

usage: python docs/make_examples.py RESULTS_FOLDER
RESULTS_FOLDER has REPORT.md and report.json: results, or results/campaigns/NAME. The picture is the first screen of
report.html where there is a chromium, else the report's first figure. docs/examples/README.md is written again.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPOSITORY / "scripts"))

from kveval.campaign.inheritance import campaign_values  # noqa: E402

EXAMPLES = REPOSITORY / "docs" / "examples"
PICTURE, ORIGIN = "first-screen.png", "made-by.json"
REPORTS = ("REPORT.md", "report.json", "report.html")
MOST_BYTES = 1_500_000
WIDTH, HEIGHT, PIXEL_RATIO = 1400, 900, 1.25
HEAD = """# Examples: reports of campaigns that were measured

Made by `python docs/make_examples.py RESULTS_FOLDER`, which copies a finished campaign's report and writes this page.
A test fails where a campaign's file has changed since.

| report | numbers for programs; the page, to download | measured by | workflow |
|---|---|---|---|
"""


def make(results: Path, examples: Path = EXAMPLES) -> Path:
    """Copy the report in `results` to a folder of its campaign's name in `examples`, and return that folder.

    Raises ValueError with one line where there is no finished report, or where it is not of a campaign in config/.
    """
    missing = [name for name in REPORTS if not (results / name).is_file()]
    if missing:
        raise ValueError(
            f"{results} has no {missing[0]}: name the folder of a finished campaign's results"
        )
    report = json.loads((results / "report.json").read_text(encoding="utf-8"))
    campaign = campaign_file(report["campaign"]["name"])
    folder = examples / report["campaign"]["name"]
    copies = {results / name for name in REPORTS}
    copies |= {*results.glob("appendix/*.md"), *results.glob("figures/*/*.png")}
    if (size := sum(file.stat().st_size for file in copies)) > MOST_BYTES:
        raise ValueError(
            f"{results}: {size:,} bytes of report and figures, an example has at most {MOST_BYTES:,}"
        )
    shutil.rmtree(folder, ignore_errors=True)
    for file in copies:
        target = folder / file.relative_to(results)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    origin = {
        "campaign": str(campaign.relative_to(REPOSITORY)),
        "campaign_digest": digest(campaign),
        "command": command(campaign),
        "title": report["campaign"]["title"],
        "kveval": ", ".join(report["software"]["kveval"]),
    }
    (folder / ORIGIN).write_text(json.dumps(origin, indent=2) + "\n", encoding="utf-8")
    (examples / "README.md").write_text(page(examples), encoding="utf-8")
    return folder


def campaign_file(name: str) -> Path:
    """The file of the campaign of that name. Raises ValueError where there is none."""
    files = [
        REPOSITORY / "config" / "config.yaml",
        *sorted((REPOSITORY / "config" / "campaigns").glob("*.yaml")),
    ]
    for file in files:
        if campaign_values(file)["name"] == name:
            return file
    raise ValueError(
        f"no file in config/ or config/campaigns/ has the name {name}: an example must be repeatable"
    )


def digest(campaign: Path) -> str:
    """A hash of what a campaign's file says, without its comments and with what it extends."""
    values = json.dumps(campaign_values(campaign), sort_keys=True, default=str)
    return hashlib.sha256(values.encode()).hexdigest()[:16]


def command(campaign: Path) -> str:
    """The command that measures a campaign and writes its report."""
    if campaign.name == "config.yaml":
        return "bash scripts/run.sh"
    arguments = f"report --configfile {campaign.relative_to(REPOSITORY)}"
    # run.sh would set up a server for CPUs.
    for_gpus = campaign_values(campaign)["server"]["build"] == "vllm"
    return (
        f"snakemake --cores 4 {arguments}"
        if for_gpus
        else f"bash scripts/run.sh {arguments}"
    )


def page(examples: Path) -> str:
    """The list of all examples."""
    rows = []
    for file in sorted(examples.glob(f"*/{ORIGIN}")):
        name, origin = file.parent.name, json.loads(file.read_text(encoding="utf-8"))
        known = [each for each in REPORTS[1:] if (file.parent / each).is_file()]
        links = " | ".join(
            [
                f"[{origin['title']}]({name}/REPORT.md)",
                ", ".join(f"[{each}]({name}/{each})" for each in known),
            ]
        )
        rows.append(f"| {links} | `{origin['command']}` | {origin['kveval']} |\n")
    return HEAD + "".join(rows)


def take_picture(results: Path, picture: Path) -> str:
    """Write the first screen of report.html, or the report's first figure; return which."""
    if shutil.which("chromium") is None:
        figure = re.search(
            r"!\[[^]]*\]\((figures/[^)]+\.png)\)",
            (results / "REPORT.md").read_text(encoding="utf-8"),
        )
        if figure is None:
            raise ValueError(
                f"{results}/REPORT.md shows no figure, and there is no chromium to picture report.html"
            )
        shutil.copyfile(results / figure[1], picture)
        return "the first figure of the report, for want of a chromium"
    with tempfile.TemporaryDirectory() as profile:
        subprocess.run(
            [
                *(
                    "chromium",
                    "--headless",
                    "--disable-gpu",
                    "--disable-dev-shm-usage",
                    "--hide-scrollbars",
                ),
                *(["--no-sandbox"] if os.geteuid() == 0 else []),
                f"--user-data-dir={profile}",
                f"--window-size={WIDTH},{HEIGHT}",
                f"--force-device-scale-factor={PIXEL_RATIO}",
                f"--screenshot={picture.resolve()}",
                (results / "report.html").resolve().as_uri(),
            ],
            check=True,
            capture_output=True,
            timeout=120,
        )
    return "the first screen of report.html"


def main(arguments: list[str]) -> Any:
    """Run from the command line; return what is wrong, None if nothing is."""
    if len(arguments) != 1:
        return __doc__
    try:
        folder = make(Path(arguments[0]))
        shown = take_picture(Path(arguments[0]), EXAMPLES / PICTURE)
    except (ValueError, OSError, subprocess.SubprocessError) as error:
        return str(error)
    print(f"{folder}\n{EXAMPLES / PICTURE}: {shown}")
    return None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
