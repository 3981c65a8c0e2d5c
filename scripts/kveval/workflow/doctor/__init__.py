"""Whether a campaign can run on its engine: what is missing, and the fix."""
