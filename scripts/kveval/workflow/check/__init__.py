"""`kveval check`: whether a candidate build is slower than the base, measured in blocks until the verdict is clear.

`campaign` makes the campaign to measure, `measuring` measures it, `judging` gives a verdict after every block,
`comment` writes it as a comment for a pull request.
"""
