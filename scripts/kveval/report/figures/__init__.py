"""One module a family of figures. A figure is a function, its caption in `captions`, and an entry in `names`."""
