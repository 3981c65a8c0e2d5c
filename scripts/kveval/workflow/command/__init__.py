"""The command `kveval`: questions about a campaign, its builds and its store, answered with an exit status.

`main` has every command with its options and help, and imports nothing heavy: what answers is imported when it is
called. `checkout` finds the repository's files, `campaign` loads the campaign that was given, `output` prints.
"""
