"""Builds compared: whether a candidate is slower than the base, and results from build to build.

Of `kveval check`, `campaign` makes the campaign to measure, `measuring` measures it in blocks until the verdict is
clear, `judging` gives a verdict after every block, `comment` writes it as a comment for a pull request. Of `kveval
history`, `history_files` keeps results, `series` puts them in the order of builds. An arm with a build of its own is
the core's affair (`campaign.builds`).
"""
