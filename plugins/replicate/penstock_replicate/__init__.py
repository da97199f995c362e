"""A second copy of a store while it is written: masters, followers, and copies in an object store."""
