"""From TOML, environment and arguments to checked, frozen objects.

In reading order: `model` (the sections and their defaults), `sources` (a file, the environment, overrides; checks them
and fills the sections), `broker_conf` (conversion from and to RocketMQ's own configuration file).
"""
