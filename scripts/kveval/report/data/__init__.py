"""The data of tables and figures, and the format of numbers, units and arms."""
