"""The commands that this package adds to `penstock`, one module each: `groups`."""
