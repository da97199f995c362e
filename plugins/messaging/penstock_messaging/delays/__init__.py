"""Delayed messages: stored in the topic of waiting messages first, and delivered to their own topic when they are due.

Nothing here knows of groups or of the commands. In reading order: `levels` (the 18 delays), `schedule` (a message as it
waits, and as it is delivered), `delay_offsets` (`config/delayOffset.json`: progress), `delivery` (the service).
"""
