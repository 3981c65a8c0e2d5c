"""A run's levels as rows: throughput, latencies, request counts, and the checks of a level and its run."""
