"""Results that were measured elsewhere, by a sheet, as cells like any other; see docs/importing.md.

`kveval import` makes the sheet of a result tree: `forms` finds the results and reads their names, `facts` and `settings`
what their files say, `interpret` tells what each is, `drafts` makes runs of them, `sheet` writes all of it down. From the
sheet on no name means anything: `plan` says what each run needs, `run` puts one with its PCP archives into the measurement
store. What a sheet and a campaign with one may say is the core's affair (`campaign.import_sheet`).
"""
