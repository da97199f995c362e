"""RocketMQ's remoting protocol, as far as a master and its slave use it beside the log.

Nothing here knows of the log's connection. In reading order: `remoting_frames` (one request or answer in bytes), `connection` (a stream of
them), `tables` (what a slave asks for, as files and as answers), `table_client` (asks a Java master), `desk` (answers Java slaves),
`registration` (tells name servers of the desk), `slave_front` (both for one master).
"""
