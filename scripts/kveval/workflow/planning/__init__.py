"""What a campaign still has to measure, why, in which order, and what that costs."""
