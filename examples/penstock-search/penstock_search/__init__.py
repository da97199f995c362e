"""Full-text search for Penstock stores: an example of a plugin distribution."""
