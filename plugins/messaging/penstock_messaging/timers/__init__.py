"""Messages that are delivered at any time: RocketMQ 5's timer messages, delivered by this process or by a broker.

They wait in the topic `rmq_sys_wheel_timer`. Nothing here knows of groups or of the commands. In reading order:
`requests` (when a message is due), `timer_message` (as it waits, as it is delivered, and how one is cancelled),
`waiting_timers` (which messages wait, in memory), `due_timers` (those whose second has come), `timer_queue` (takes in
what was put), `cancellations` (what cancels what), `timer_delivery` (the service), `timer_listing` (what waits, for
people); a broker's files: `timer_check` (`timercheck`), `timer_log` (`timerlog/`), `wheel_file` (`timerwheel`),
`timer_units` (what a unit says of a record), `unit_chains` (the chains of a second), `timer_loading` (what of them is
right), `timer_state` (all of them).
"""
