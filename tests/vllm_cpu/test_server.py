"""`vllm serve` without gramary: OpenAI's client streams from it, and a signal ends all of it."""

from collections.abc import Callable
from pathlib import Path

from vllm_cpu.engine import STOCK, Run
from vllm_cpu.prompts import PROMPTS
from vllm_cpu.server import serve


def test_server_streams_and_stops(
    stock_outputs: Callable[[str], Run], variant: Callable[[str], Path], tmp_path: Path
) -> None:
    expected = stock_outputs("fp8").outputs(0)[0]["samples"][0]["text"]
    with serve(variant("fp8"), tmp_path, **STOCK) as server:
        with server.client() as client:
            stream = client.completions.create(
                model="tiny", prompt=PROMPTS[0], max_tokens=6, temperature=0, stream=True
            )
            parts = [chunk.choices[0].text for chunk in stream]
        assert len(parts) > 1
        assert "".join(parts) == expected
        assert "vllm:generation_tokens_total" in server.get("/metrics")
        assert len(server.list_processes()) > 1
        assert server.stop() == 0
        assert server.wait_for_left_over() == []
