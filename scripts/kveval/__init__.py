"""Library of the KV-cache offload evaluation: see docs/architecture.md for its rooms."""

import gc

__version__ = "0.1.0"

# A job or a command loads hundreds of modules that stay. With its usual threshold Python searches them for garbage
# again and again, which takes a tenth of the processor time of a start.
gc.set_threshold(20_000, *gc.get_threshold()[1:])
