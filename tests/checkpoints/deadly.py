"""An objective for tests of the launcher: TOPR's own, in a process that dies as it is told.

In the folder that $DEADLY names, `calls.json` says what happens in which call of the loss, counted
over all processes so far: {"3": "kill"} kills the process in the third. `states.json` says the same
of the states that are completed. `calls` and `states` hold the process of each call, a line each.
"""

import json
import os
import signal
import time
from pathlib import Path

from topr_pipeline.checkpoints import trainer
from topr_pipeline.checkpoints.objective import Loss, ObjectiveInput, make_objective

FOLDER = Path(os.environ.get("DEADLY", "/nonexistent"))
TOPR = make_objective("topr")


def loss(x: ObjectiveInput) -> Loss:
    die(told("calls"))
    return TOPR.loss(x)


def told(name: str) -> str | None:
    """What is to happen now, after one more call of `name`."""
    if not FOLDER.is_dir():
        return None
    with (FOLDER / name).open("ab") as stream:
        stream.write(f"{os.getpid()}\n".encode())
        stream.flush()
        so_far = stream.tell()  # the end of its own line, whoever else wrote since
    count = (FOLDER / name).read_bytes()[:so_far].count(b"\n")
    deaths = FOLDER / f"{name}.json"
    return json.loads(deaths.read_text()).get(str(count)) if deaths.exists() else None


def die(how: str | None) -> None:
    match how:
        case "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exit":
            os.write(2, b"a word before the end\n")
            os._exit(3)
        case "raise":
            raise RuntimeError("a mistake of its own")
        case "sleep":
            time.sleep(600)


def complete(folder: Path) -> None:
    """Of the states: dies when told, with a state that is written but has no name yet."""
    die(told("states"))
    _complete(folder)


_complete, trainer.complete = trainer.complete, complete
