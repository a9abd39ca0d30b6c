"""Commands as processes with streams that are closed, full or broken.

Run with the place of a JSON list of cases, it prints the list of their exit codes. Each command is
a fork of this process, which has imported everything, so that dozens take seconds.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import Any, TextIO


def main() -> None:
    import torchtheory.audit
    import torchtheory.labs.engine.store
    import torchtheory.report.terminal  # noqa: F401 - for the forks
    from torchtheory import cli

    codes = []
    for number, case in enumerate(json.loads(Path(sys.argv[1]).read_text("utf-8"))):
        child = os.fork()
        if child == 0:
            os._exit(_run(cli.main, number, case))
        codes.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    print(json.dumps(codes))


def _run(command: Any, number: int, case: dict[str, Any]) -> int:
    signal.alarm(60)  # ends the process unless it is done by then
    os.environ.update(case["environment"])
    for name, handle in (("stdout", 1), ("stderr", 2)):
        setattr(sys, name, _stream(handle, case[name], f"out/process-{number}.{name}"))
    try:
        command(case["arguments"])
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else 99
    except BaseException:
        Path(f"out/process-{number}.stderr").write_text(traceback.format_exc(), "utf-8")
        return 99
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):  # as Python does when it ends
            return 120
    return code


def _stream(handle: int, kind: str, file: str) -> TextIO | None:
    os.close(handle)
    if kind == "closed":
        return None
    if kind == "broken":
        reader, writer = os.pipe()
        os.close(reader)
    else:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC
        writer = os.open("/dev/full" if kind == "full" else file, flags)
    if writer != handle:
        os.dup2(writer, handle)
        os.close(writer)
    encoding = "ascii" if os.environ.get("LANG") == "C" else "utf-8"
    return open(handle, "w", encoding=encoding, closefd=False)


if __name__ == "__main__":
    main()
