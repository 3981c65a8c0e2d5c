"""An archive to one Parquet file in the long form: catalogue of series, decoding, chunks of rows, the file itself.

Knows `archive`. PCP's own exporter, pcp2arrow, as the other converter, is here too.
"""
