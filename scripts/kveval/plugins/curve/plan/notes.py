"""Lines of a plan about tiers: whether one can pay, and what each size adds."""

from kveval.configuration.config import Config
from kveval.plugins.curve.plan.curves import level_curves
from kveval.plugins.curve.plan.fit import fit_lines
from kveval.plugins.curve.plan.tier_sizes import MOST_BLOCKS, tier_size_lines
from kveval.workflow.planning.plan import PlanNotes
from kveval.workflow.planning.stored import StoreIndex


def plan_notes(config: Config, store: StoreIndex) -> PlanNotes:
    """Return the lines of a plan that come first, and those after what the workload can show."""
    curves = [*level_curves(config, store, MOST_BLOCKS)]
    first = [*fit_lines(config, curves, store)]
    return PlanNotes(first, [*tier_size_lines(config, store)])
