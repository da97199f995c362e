"""From TOML, environment and arguments to checked, frozen objects.

In reading order: `model` (the sections and their defaults, and how they are read), `profiles` (defaults that depend on who
created a store), `broker_conf` (conversion from and to RocketMQ's own configuration file).
"""
