"""Choices and sums of a result, as values, for the templates in `kveval.report.templates`, which have the words."""
