"""Target `check`: is the candidate build slower than the base? Measured block by block, until it is clear.

`campaign` makes the campaign that is measured, `measuring` measures it, `judging` looks after every block, `comment`
says it as a comment for a pull request.
"""
