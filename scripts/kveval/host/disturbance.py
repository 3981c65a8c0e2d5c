"""How much other programs may take of a host before they disturb what is measured."""

DISTURBED_PERCENT = 10.0
"""Share of the processors' time, %: if others take more, a server is not as fast as it is alone.

On a quiet host of two cores it is 0.4, with 16 streams; beside tests at idle priority it was 29 to 52.
"""
