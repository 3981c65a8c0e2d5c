import os
import sys
from copy import deepcopy

from snakemake.utils import min_version

min_version("9.27")

# Jobs call `python`: this one, also where its environment is not activated.
if (PROGRAMS := os.path.dirname(sys.executable)) not in os.get_exec_path():
    os.environ.update(PATH=os.pathsep.join([PROGRAMS, *os.get_exec_path()]))

# Many containers set it. Each run starts a server, which would compile all of vLLM's Python again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# `config` as given, before the default campaign is loaded below: a given campaign replaces the default, unmerged.
GIVEN = deepcopy(config)


configfile: os.path.relpath(Path(workflow.snakefile).parent / "config" / "config.yaml")


include: "rules/common.smk"
include: "rules/inputs.smk"
include: "rules/preview.smk"


if RUNS.elsewhere.rules is not None:

    include: str(RUNS.elsewhere.rules)

else:

    include: "rules/benchmark.smk"
    include: "rules/pilot.smk"


include: "rules/link.smk"


# The image (envs/workflow.def) in which `--sdm apptainer` runs the rules below, if KVEVAL_IMAGE names one. The rules
# above measure, import or inspect this host, and run outside it.
container: os.environ.get("KVEVAL_IMAGE")


include: "rules/convert.smk"
include: "rules/analyse.smk"


for RULES in rule_files(shared_folder=INVOCATION.shared_folder):

    include: str(RULES)


include: "rules/report.smk"


if not INVOCATION.shared_folder:

    include: "rules/share.smk"


rule report:
    default_target: True
    input:
        REPORT.format(so_far="") if INVOCATION.shared_folder else local(BROUGHT),
        BESIDE_TARGET,
    localrule: True


# A report on the runs that exist, in a folder of its own: with keep-going, one failed job keeps `report` from running.
# It uses the existing runs as they are and never starts a measurement.
rule report_so_far:
    input:
        REPORT.format(so_far=SO_FAR),
    localrule: True


rule peaks:
    input:
        expand("{cell}/peak.csv", cell=CELL_FOLDERS),
    localrule: True


rule figures:
    input:
        expand(f"{RESULTS}/figures/{{family}}", family=FIGURE_FAMILIES),
    localrule: True


rule preview:
    input:
        expand("{cell}/deployment.yaml", cell=CELL_FOLDERS),
    localrule: True
