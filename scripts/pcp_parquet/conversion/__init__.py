"""Converts archives to a Parquet file in the long form: catalogue of series, decoding, chunks of rows, the file.

Knows `archive`. The other converter, PCP's own exporter pcp2arrow, is here too.
"""
