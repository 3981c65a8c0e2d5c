# The functions that rules call for inputs and parameters. Snakemake takes long to call functions of thousands of jobs:
# what a job of a cell, or of the campaign, can ask for is not asked by the jobs of its runs.

# The record of a job's run: kveval.workflow.runs.
run_of = RUNS.run_of


def runs_for(wildcards):
    """Return the runs of a report, as cell and name: those of the campaign, or those that exist for a report so far."""
    return RUNS.so_far.runs if wildcards.so_far else RUNS.planned


def files_of_runs(*names):
    """Return the input function for files of every run of a report."""

    def files(wildcards):
        top = f"{RESULTS}/{wildcards.so_far}"
        return [
            f"{top}{cell.path}/{run}/{name}"
            for name in names
            for cell, run in runs_for(wildcards)
        ]

    return files


def files_of_cell(*names):
    """Return the input function for files of every run of a job's cell."""

    def files(wildcards):
        cell = CELL.format(**wildcards)
        return [
            f"{cell}/{run}/{name}" for name in names for run in RUNS.names(wildcards)
        ]

    return files


def runs_of_cell(wildcards):
    """Input function: the runs of a job's cell. Those that are absent or not what is planned are made, or made again.

    Here and not in the rules that make runs, because there are thousands of these.
    """
    plan_anyway(workflow, RUNS.due(wildcards))
    return files_of_cell(RUN_POINTER)(wildcards)


def tables_of_cells(name):
    """Return the input function for a table of every cell; for a report so far, of the cells that have a run."""

    def tables(wildcards):
        cells = dict.fromkeys(cell for cell, _ in runs_for(wildcards))
        return [f"{RESULTS}/{wildcards.so_far}{cell.path}/{name}" for cell in cells]

    return tables


def peaks_so_far(wildcards):
    """Input function: for a report so far, peak.csv of its cells, which may hold a reason instead; else nothing."""
    return tables_of_cells("peak.csv")(wildcards) if wildcards.so_far else []


# Input functions of plug-ins: tables of cells that say how much of their requests had come before.
BESIDE_COMPARISON = []


def predicted_tables(wildcards):
    """Input function: what plug-ins predict of cells and verdicts use."""
    return [path for tables in BESIDE_COMPARISON for path in tables(wildcards)]


def lenient(wildcards):
    """Return the option with which, in a report so far, a cell without a peak does not keep the others out."""
    return "--lenient" if wildcards.so_far else ""


def failures_so_far(wildcards):
    """Return the reasons of cells that lack a run, by the cells' paths; empty unless for a report so far."""
    failures = RUNS.so_far.failures if wildcards.so_far else {}
    return {cell.path: reason for cell, reason in failures.items()}


def pilots_for_report(wildcards):
    """Input function: the levels that pilots find; a report so far does not wait for them."""
    return [] if wildcards.so_far else local(RUNS.pilots)


def pilots_so_far(wildcards):
    """Return the files of levels that exist, for a report so far; else nothing."""
    levels = RUNS.pilots if wildcards.so_far else []
    return [path for path in levels if Path(path).exists()]


def due_pilot(wildcards):
    """Input function without files: have a pilot made again that is not the planned one."""
    return plan_anyway(workflow, RUNS.due_pilot(wildcards))


def due_tables(wildcards):
    """Input function without files: have the tables that are not of the planned runs made again.

    It is the first one of its rule, because it also ends snakemake where there is nothing to report so far.
    """
    if wildcards.so_far:
        RUNS.require_something_so_far()
        return []
    # A report that is made elsewhere is not here to be compared.
    collected = ALL_RUNS.format(so_far="")
    due = RUNS.due_tables(collected) if INVOCATION.shared_folder else []
    return plan_anyway(workflow, due)


def folder_of_figure(wildcards):
    """Input function: the folder with the figures of the family that a figure is of."""
    family = find_figure(wildcards.figure, MODELS).family
    return f"{RESULTS}/{wildcards.so_far}figures/{family}"


def campaign_of_jobs(wildcards, input):
    """Return the campaign's file, which no job depends on: a further cell is no reason to measure the others again.

    Snakemake does not record parameters that are functions of `input`. The file is written here, not when snakemake
    starts, because it ignores what a module's rules have for its start.
    """
    if is_executing(workflow) and not CAMPAIGN_FILE.exists():
        write_resolved_campaign(VALUES)
    return CAMPAIGN_FILE


def levels_option(wildcards, input):
    """Return the option that names the file with the pilot's levels."""
    return f"--levels {shlex.quote(input.levels)}"


def doing(verb, name=""):
    """Return the parameter that begins a message: `verb` (Measuring), or Adopting for what the store already holds.

    `name`: that of a run with no number.
    """

    def began(wildcards, input):
        run = run_of(wildcards, name)
        return WhenPrinted(
            lambda: "Adopting" if RUNS.adoptable(run, Path(STORE)) else verb
        )

    return began
