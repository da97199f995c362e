"""The verbs of `penstock spark`, one a module: options in, the job's function, tables or JSON out."""
