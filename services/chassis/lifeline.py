"""`python -m services.chassis.lifeline COMMAND…`: run COMMAND, and end it when the launcher dies.

For programs that are not ours, such as nats-server. The parent-death signal outlives exec.
"""

import os
import sys

from services.chassis.process.parent_death import tie_to_parent

if __name__ == "__main__":
    tie_to_parent()
    os.execvp(sys.argv[1], sys.argv[1:])
