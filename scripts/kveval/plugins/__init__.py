"""What the mission does not need: a capability a folder, which adds its commands through `workflow.plugin`.

A plug-in may import the core; nothing in the core imports one, and none imports another.
"""
