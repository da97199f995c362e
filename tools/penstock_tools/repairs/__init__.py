"""Offline repair of a store: a plan first, which changes nothing, then the repair.

In reading order: `planner` (with the log as it will be after the repair), `repair`. (The folder is not called `repair`:
that is the public function.)
"""
