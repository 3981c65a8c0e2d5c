"""Can a campaign run where it says? What is missing, and the fix."""
