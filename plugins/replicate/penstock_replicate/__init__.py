"""A second copy of a store while it is written: `ha`, on RocketMQ's own protocol, and `ship`, to a folder or a URL."""
