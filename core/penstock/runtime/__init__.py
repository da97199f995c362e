"""Time and threads: the only folder that starts a thread, sleeps, or reads a clock.

In reading order: `clock` (time, passed in), `workers` (background threads), `sync_thread` (the compiled kernel's thread
as workers see it), `waking` (how waiting readers learn of new messages).
"""
