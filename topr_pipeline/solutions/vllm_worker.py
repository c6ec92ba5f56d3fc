"""What vLLM's workers can do in addition; vLLM imports this by name, in its own processes."""

import os
import signal
import threading
import time

import psutil

EVERY = 2.0
"""Seconds between looks at the process that is followed."""


class WorkerExtension:
    """Methods that vLLM adds to its worker class."""

    def reseed(self, seed: int) -> None:
        """Seed every generator that this worker draws from.

        A seed per request would do the same on GPUs, slower; on CPUs it stops the engine.
        """
        from vllm.utils.torch_utils import set_random_seed  # pyrefly: ignore

        set_random_seed(seed)

    def follow(self, pid: int) -> None:
        """End this worker, and with it the engine, soon after the process `pid` has gone.

        vLLM alone would go on, and keep the memory, when the process that uses it is killed.
        """
        process = psutil.Process(pid)

        def watch() -> None:
            while process.is_running() and process.status() != psutil.STATUS_ZOMBIE:
                time.sleep(EVERY)
            os.kill(os.getpid(), signal.SIGKILL)

        threading.Thread(target=watch, daemon=True).start()
