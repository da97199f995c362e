"""The verbs of `penstock`, one module each, found by its name: each has a `command`.

* Make a store and put into it: `init`, `put`, `ingest`.
* Read messages: `read`, `tail`, `find`, `get`.
* See the store as a whole: `topics`, `groups`, `stat`, `verify`.
* Change it: `retain`, `repair`.
* Penstock itself: `plugins`, `config`, `matrix`, `demo`.
"""
