"""Tables beside the measured ones: predicted hits and gains, and where hits are lost."""
