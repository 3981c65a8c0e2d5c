"""One run as one transaction: adopt or deploy, record, load level after level, collect, seal, tear down.

The same for every engine. Knows `engines` and what is below, and asks kveval.tables to judge a level at once where
levels are searched.
"""
