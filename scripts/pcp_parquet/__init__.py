"""Archives of Performance Co-Pilot (PCP) to Parquet, without PCP, and reading the tables back.

A distribution of its own, which knows nothing of the programs that use it: README.md and pyproject.toml lie beside this
file. `archive` reads the format, `conversion` writes the long form, `parquet` reads it back, and `tool` is the command
pcp-parquet, also `python -m pcp_parquet`.
"""

__version__ = "1.0.0"
