"""An MCP server that says what its arguments are: its result of tools/list, and of tools/call."""

import json
import sys

LISTED, CALLED = sys.argv[1:]
for line in sys.stdin:
    message = json.loads(line)
    said = {"initialize": "{}", "tools/list": LISTED, "tools/call": CALLED}.get(message["method"])
    if said is not None:
        number = json.dumps(message["id"])
        sys.stdout.write(f'{{"jsonrpc": "2.0", "id": {number}, "result": {said}}}\n')
        sys.stdout.flush()
