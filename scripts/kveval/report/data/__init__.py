"""The data that tables and figures are made from, and how values, units and arms are written and look."""
