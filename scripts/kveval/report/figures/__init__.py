"""Figures, one module per family. A figure is a function, a caption in `captions`, and an entry in `names`."""
