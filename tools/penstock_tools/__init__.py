"""Tools beside the kernel: command line, files of messages, repairs, segment-wise jobs, matrix of strategies.

They use what a program could use: the public names of `penstock`, and the kernel's documented parts. Nothing in the
kernel needs them; `penstock` only names those of their functions that are public, and imports them at first use.
"""
