"""The measurements that a campaign still lacks: why, in which order, and what they cost."""
