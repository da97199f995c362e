"""How bytes are written and how segment files are made."""
