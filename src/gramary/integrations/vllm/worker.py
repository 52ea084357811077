"""What gramary adds to vLLM's worker: no output of a step whose rows failed, an orderly end."""

from __future__ import annotations

from typing import Any

from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput

from gramary.errors import UnsupportedError
from gramary.integrations.vllm.feed import RowFeed


class OutputWithRows(AsyncModelRunnerOutput):
    """A step's output that is handed on once it is known that the step's rows were good.

    Args:
        output: vLLM's, whose `get_output` waits for the step.
        feed: what fetched the rows.
    """

    def __init__(self, output: AsyncModelRunnerOutput, feed: RowFeed) -> None:
        self._output = output
        self._feed = feed

    def get_output(self) -> ModelRunnerOutput:
        """Returns the step's output; see vLLM's class.

        Raises:
            RowFetchError: rows of this step, or of one before, could not be had.
        """
        result = self._output.get_output()
        self._feed.check()
        return result

    def get_kv_connector_output(self) -> Any:
        """Returns what a KV connector did in the step, also where `get_output` raises."""
        return self._output.get_kv_connector_output()


class WorkerMixin:
    """Methods that stand before those of vLLM's worker."""

    model_runner: Any

    def load_model(self, **kwargs: Any) -> None:
        """Loads the model as vLLM's worker does.

        Raises:
            UnsupportedError: vLLM built a class of its own, with a table.
        """
        super().load_model(**kwargs)  # type: ignore[misc]
        state = self.model_runner.model_state
        if not hasattr(state, "feed"):
            raise UnsupportedError(
                f"gramary: vLLM built {type(self.model_runner.model).__name__} with its own table: "
                "another plugin registered the model's architecture too; leave one of them out by "
                "VLLM_PLUGINS"
            )

    def sample_tokens(self, grammar_output: Any) -> Any:
        """Samples as vLLM's worker does; the rows' state is read before the tokens are."""
        output = super().sample_tokens(grammar_output)  # type: ignore[misc]
        feed = self._feed()
        if feed is None or output is None:
            return output
        if isinstance(output, AsyncModelRunnerOutput):
            return OutputWithRows(output, feed)
        feed.check()
        return output

    def shutdown(self) -> None:
        """Ends vLLM's worker, then the threads and memory of the rows."""
        feed = self._feed()
        try:
            super().shutdown()  # type: ignore[misc]
        finally:
            if feed is not None:
                feed.close()

    def _feed(self) -> RowFeed | None:
        runner = getattr(self, "model_runner", None)
        return getattr(getattr(runner, "model_state", None), "feed", None)


__all__ = ["WorkerMixin"]
