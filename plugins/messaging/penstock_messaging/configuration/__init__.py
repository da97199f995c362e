"""The configuration of topics and groups in files of RocketMQ's broker, and what follows from it for puts.

Rule: only this folder writes `config/topics.json` and `config/subscriptionGroup.json`. A file that cannot be parsed is
never replaced, and nothing in it that is not understood is lost.

In reading order: `broker_json` (bytes as brokers write them), `broker_files` (one file with its backup), `config_table`
(its entries in memory, and when they are saved), `saving` (the thread that saves), `topics` and `groups` (the entries'
meaning), `auto_topics` (which topics messages have created), `checks` (refuses messages), `routing` (picks a queue),
`parts` (all of it for one store).
"""
