"""Messages that are delivered at any time: RocketMQ 5's timer messages, delivered by this process or by a broker.

They wait in the topic `rmq_sys_wheel_timer`. Nothing here knows of groups or of the commands. In reading order: `requests` (what
callers request), `timer_message` (a message as it waits, as it is delivered, and how one is cancelled), `waiting_timers` and
`due_timers` (which messages wait, in memory), `timer_queue` (takes in what was put), `timer_delivery` (the service), `timer_listing`
(what waits, for people). A broker's files: `timer_log`, `wheel_file`, `timer_check`; `unit_chains` and `timer_units` (columns of
units), `timer_loading` (what the files say), `timer_state` (loads and saves).
"""
