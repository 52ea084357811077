"""vLLM's worker on a GPU, with gramary."""

from vllm.v1.worker.gpu_worker import Worker

from gramary.integrations.vllm.worker import WorkerMixin


class WorkerWithRows(WorkerMixin, Worker):
    """A worker whose rows come from gramary."""


__all__ = ["WorkerWithRows"]
