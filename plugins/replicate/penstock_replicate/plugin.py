"""Registers the replicators of this package. Imports them only when a store is opened."""
