"""What vLLM's workers can do in addition; vLLM imports this by name, in its own processes."""


class Reseeding:
    """A worker extension: random numbers from a seed that is given at run time.

    A seed per request would do the same on GPUs, slower; on CPUs it stops the engine.
    """

    def reseed(self, seed: int) -> None:
        """Seed every generator that this worker draws from."""
        from vllm.utils.torch_utils import set_random_seed  # pyrefly: ignore

        set_random_seed(seed)
