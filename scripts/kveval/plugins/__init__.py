"""Capabilities beside the core, which the mission does not need: a folder each, which adds itself by `workflow.plugin`.

A plug-in may import the core; nothing in the core imports one, and none imports another.
"""
