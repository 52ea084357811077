"""The worker process: `python -m gramary.offload.worker`."""
