"""Stands in for the process that compiles a form: what it does is the form's key. It starts without torch."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import time

BUSY = "import time\nwhile True: pass"
SECONDS = {"loads_s": 2.0, "cold_s": 40.0}

ours = socket.socket(fileno=int(sys.argv[1]))
what = json.loads(ours.makefile().readline())["key"]
if what.startswith("works"):  # with what it has started: a child, and one in a session of its own
    for apart in (False, True):
        subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=apart)
    while True:
        pass
if what == "hangs":
    time.sleep(600)
if what == "aborts":
    os.abort()
if what == "disk":
    print("OSError: [Errno 28] No space left on device", file=sys.stderr)
    sys.exit(1)
if what == "refuses":
    ours.sendall(b'{"kind": "failed", "why": "RuntimeError: it cannot"}\n')
    sys.exit(1)
if what == "babbles":
    ours.sendall(b"no json\n")
    sys.exit(0)
if what == "leaves":  # a child behind
    subprocess.Popen([sys.executable, "-c", BUSY], start_new_session=True)
ours.sendall((json.dumps({"kind": "compiled", **SECONDS}) + "\n").encode())
