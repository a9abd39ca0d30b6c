"""The command line: one module for each command, which parses, calls and prints.

Results go to stdout, progress and errors to stderr. Exit codes: 0 done, 1 what was found is bad (a
claim is violated, a lab failed) or nobody reads stdout any more, 2 bad input, 130 interrupted.

Commands import what they call inside their functions: reading the options of all commands, for
`--help` or the completion of a shell, must not load torch.
"""

from torchtheory.cli.entry import app, main

__all__ = ["app", "main"]
