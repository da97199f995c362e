"""Time and threads: the only folder that starts a thread, sleeps, or reads a clock.

In reading order: `clock` (time, passed as an argument), `workers` (background threads), `waking` (of waiting readers).
"""
