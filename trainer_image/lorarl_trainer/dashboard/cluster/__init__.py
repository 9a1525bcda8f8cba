"""`lorarl dashboard --cluster`: the LoRARLJobs of a cluster on one page, for those who may list them.

`jobs.py` makes a line of a job, `view.py` chooses what a page shows, `usage.py` sums GPU time: all pure. `api.py` asks
the API server, `watch.py` follows the jobs there, `access.py` asks who a reader is and what they may see. `records.py`
finds the run of a job in a store, and `site.py` answers with pages.
"""
