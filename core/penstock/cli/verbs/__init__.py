"""The verbs of `penstock`, one module each: the module's name is the verb, and its `command` is run.

* * Create a store and write to it: `init`, `put`, `ingest`.
* Read messages: `read`, `tail`, `find`, `get`.
* * Inspect the store as a whole: `topics`, `groups`, `stat`, `verify`.
* Messages to files and back: `export`, `import`.
* Change it: `retain`, `repair`.
* Penstock itself: `plugins`, `config`, `matrix`, `demo`.
"""
