"""`lorarl dashboard`: all runs of folders and stores on one page, for reading only.

`found.py` finds the runs in a listing, `row.py` makes a run's row of its files, `place.py` follows one folder or store
and keeps its rows, `index.py` keeps them on disk. `ordering.py` is what lists have in common, `view.py` chooses what a
page shows. `files.py` brings the files of one run here, `reports.py` makes its pages, and `site.py` answers with pages,
most of them made by `progress/`. `cluster/` has the page of a cluster's jobs.
"""
