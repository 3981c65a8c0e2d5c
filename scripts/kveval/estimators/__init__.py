"""Statistical estimators without knowledge of campaigns: intervals, survival, correlations."""
