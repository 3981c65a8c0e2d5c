"""Campaigns and catalogues and what they may say, the cell, its sizes, its `Specification` and the measurement's id.

Pure, and without knowledge of any server: `configuration` puts a campaign and a server's
arguments together. A `Specification` is made once, there, and read by its attributes from
then on; its JSON is hashed to the measurement id, so a new field changes ids. Imports `host`
and `load`; a `Cell` alone imports less, for it is also what stored runs are named by. A
new key goes into the model of its section (`campaign_file`, `catalogue`, ...).
"""
