"""vLLM's worker on the CPU, with gramary."""

from vllm.v1.worker.cpu_worker import CPUWorker

from gramary.integrations.vllm.worker import WorkerMixin


class WorkerWithRows(WorkerMixin, CPUWorker):
    """A worker whose rows come from gramary."""


__all__ = ["WorkerWithRows"]
