"""The page report.html of a run, and its figures."""
