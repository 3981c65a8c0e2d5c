"""The command `pcp-parquet`: PCP's time syntax, sampling as libpcp does it, and tables as pcp2arrow writes them.

Knows `archive` and `conversion`. Add here another option of pcp2arrow; the long form is made by `conversion`.
"""
