"""The verbs of `penstock spark`, one module each, found by its name.

A verb parses options, calls the job's function, and prints tables or JSON. Every module has a click command named
`command`. In reading order: `verify`, `stats`, `reindex`, `export`, `replay`, `compact`.
"""
