import signal
import subprocess
import sys

FOLLOWER = """
import sys, time
from topr_pipeline.solutions import vllm_worker
vllm_worker.EVERY = 0.01
vllm_worker.WorkerExtension().follow(int(sys.argv[1]))
print("following", flush=True)
time.sleep(60)
"""


def test_a_worker_ends_when_the_process_that_it_follows_is_killed():
    followed = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    worker = subprocess.Popen(
        [sys.executable, "-c", FOLLOWER, str(followed.pid)], stdout=subprocess.PIPE
    )
    try:
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"following\n"
        assert worker.poll() is None
        followed.kill()  # not waited for: a zombie is gone too
        assert worker.wait(30) == -signal.SIGKILL
    finally:
        worker.kill()
        followed.wait()
        worker.communicate()
