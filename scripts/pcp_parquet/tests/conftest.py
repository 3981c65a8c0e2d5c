"""What all tests share."""

from hypothesis import settings

# How fast an example is checked is the machine's affair.
settings.register_profile("any machine", deadline=None)
settings.load_profile("any machine")
