"""Figures, one module per family. A figure is a function with `names.figure` above it: title, section, caption."""
