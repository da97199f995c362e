"""Whose log it is: the history and the epoch in a store's `penstock/replica`."""
