"""Reports for people: one record of sections (`document`), rendered as HTML, terminal, Markdown and JSON.

`training` makes the record of a run or of a study of several seeds, from what `greenward.runs` reads.
"""
