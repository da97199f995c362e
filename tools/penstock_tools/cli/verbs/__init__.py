"""The verbs of `penstock`, one module each: the module's name is the verb, and its `command` is run.

* Create a store and write to it: `init`, `put`, `ingest`.
* Read messages: `read`, `tail`, `find`, `get`.
* Inspect the store as a whole: `topics`, `stat`, `verify`.
* Messages to files and back: `export`, `import`.
* Change it: `flush`, `retain`, `repair`.
* Penstock itself: `plugins`, `config`, `matrix`, `demo`, `completion`.
"""

# What `penstock --help` says of each, as each says itself: importing them all for that would take half a second of
# processor time. A test compares.
SUMMARIES = {
    "config": "Show the whole configuration as it would be used, including the options of all strategies.",
    "completion": "Print the script with which SHELL completes verbs, options, files, and names in stores.",
    "demo": "Store this Python's standard library line by line, look up messages, count with Spark, crash, and "
    "recover.",
    "export": "Write messages of the store at PATH to a file, which `penstock import` reads back.",
    "find": "Find messages by key, by time, or both; of TOPIC, or of all topics.",
    "flush": "Make all messages put so far durable.",
    "get": "Show the message with the message id ADDRESS, or at the log offset ADDRESS.",
    "import": "Store the rows of SOURCE in the store at PATH: a file from `penstock export`, or - for standard input.",
    "ingest": "Put every row of SOURCE (a file, or - for standard input) into the store at PATH.",
    "init": "Create a store at PATH, or open the existing one; reports what recovery did.",
    "matrix": "Measure every combination of writer, allocator and flush policy on the disk of PATH.",
    "plugins": "List installed strategies with their options, and plugins that were not loaded, with the reason.",
    "put": "Put one message with BODY into TOPIC; a body of - is read from standard input.",
    "read": "Show messages of TOPIC.",
    "repair": "Show the repairs a store needs: which files, which bytes, how many messages.",
    "retain": "Delete the segments that the retention policies expire.",
    "stat": "Show what is in a store: topics, messages, time span, sizes, and whether it was closed cleanly.",
    "tail": "Show the newest messages of TOPIC; with -f also new ones as they arrive.",
    "topics": "List topics with their queues and message counts.",
    "verify": "Check log, queues and index against each other.",
}
