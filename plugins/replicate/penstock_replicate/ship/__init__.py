"""The replicator `ship`: the log in a folder or at a URL, in objects that never change, and a store made from them again.

Layout of an archive, below its folder or URL::

    owner.json                               the process that ships there now
    log/<start>-<stop>[.zlib]                the log's bytes from one log offset to another, in one segment
    side/<number>.zlib                       the files beside the log, as of manifest `number`
    manifests/<number>-<time_ms>.json        what of all that counts (see `manifest`)

Invariants:
    * An object is complete, and durable, before a manifest names it. A manifest is never replaced, and counts only if its
      digest is right; the newest such counts. So a crash between any two calls leaves the manifest before.
    * No object that one of the newest manifests names is removed (see `keeping`).
    * Only bytes that are durable in the store itself are shipped, so a store that recovered from a crash is never behind its archive.
    * No name in an archive is made of text that an archive holds.

In reading order: `ship_errors`, `archive` (a folder, or a URL), `archive_url` (fsspec), `manifest` (what counts), `record_walk`
(records by their headers), `side_bundle` (the files beside the log), `planning` (which ranges become objects), `keeping` (what is
removed), `identity` (whose log it is), `uploading` (one object), `shipper` (one round after the other), `ship_replicator` (the
strategy), `restore_point` (what can be restored), `log_writer` (segments of the new store), `restoring` (a store from an archive).
"""
