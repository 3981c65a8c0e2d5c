"""Reading the Parquet files back: series, rates, samples of a window.

Knows `conversion` for what the files hold. Add here another way to ask for values.
"""
