"""Segment writers and allocators: how bytes are written, and how segment files are created."""
