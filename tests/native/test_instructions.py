"""The cap on CPU instructions: for the whole process, and never raised again."""

import pytest
from children import run_child
from table_stage import encoded_table, small_spec, write_table_folder

PROGRAM = """
import os, socket, sys
import torch
from gramary import Settings, Table
from gramary.cli.doctor import examine
from gramary.native import _core
from gramary.native.instructions import cap_instructions
from gramary.offload.worker.serving import Worker

def levels():
    return _core.detected_simd_level(), _core.simd_level()

def read(**settings):
    with Table.open(sys.argv[1], placement="host", settings=Settings(**settings)) as table:
        return table.lookup(torch.arange(500))

best = _core.detected_simd_level()
rows = read()
cap_instructions("auto")
assert levels() == (best, best)
cap_instructions("avx2")
assert levels() == (min(best, 1),) * 2
for widest in ("avx512", "auto"):
    cap_instructions(widest)
    _core.set_simd_level(2)
    assert levels() == (min(best, 1),) * 2
if sys.argv[2] == "table":
    assert torch.equal(read(instructions="scalar"), rows)
elif sys.argv[2] == "worker":
    Worker(*socket.socketpair(socket.AF_UNIX), 1, Settings(instructions="scalar"))
else:
    os.environ["GRAMARY_INSTRUCTIONS"] = "scalar"
    found = next(finding for finding in examine(None) if finding.name == "CPU instructions")
    assert "scalar in use" in found.detail
assert levels() == (0, 0)
assert torch.equal(read(), rows)
"""


@pytest.mark.parametrize("user", ["table", "worker", "doctor"])
def test_the_lowest_cap_holds_for_the_process(tmp_path, user: str) -> None:
    """Whoever reads the setting, from then on; the rows are the same bits."""
    encoded, codec = encoded_table(small_spec(), "fp8")
    folder = write_table_folder(tmp_path, small_spec(), encoded, codec)
    done = run_child(PROGRAM, folder, user)
    assert done.returncode == 0, done.stderr
