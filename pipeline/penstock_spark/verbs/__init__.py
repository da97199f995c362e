"""The verbs of `penstock spark`, one a module, each found by its name: options in, the job's function, tables or JSON out.

Every module has a click command named `command`. In reading order: `verify`, `stats`, `reindex`, `export`, `replay`, `compact`.
"""
