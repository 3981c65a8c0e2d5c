"""One module a family of figures. A figure is a function entered in FIGURES, with a title in `names` and a caption."""
