"""The one base of every failure that is reported as a cause, in one line, instead of a traceback."""


class Failure(RuntimeError):
    """Something outside this program went wrong; the message says what, where, and what would be right."""
