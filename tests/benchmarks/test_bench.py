"""What `gramary bench` runs: subjects, one peer only, receipts and pictures where asked."""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from children import run_apart

from benchmarks import harness, machine, one, peers, pictures, run, state_cpu, subjects
from benchmarks.receipts import schema as receipts

PICTURES = machine.ROOT / "docs" / "pictures"


def make_case(*names: str, baseline: str, targets: dict[str, float] | None = None) -> harness.Case:
    """Returns a case that does nothing."""
    return harness.Case(
        name="4 tokens",
        parameters={"num_tokens": 4},
        candidates={name: lambda: None for name in names},
        baseline=baseline,
        check=lambda: 1,
        checked="nothing",
        moved_bytes=1,
        cache_note="none",
        targets=targets or {},
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_every_subject_has_a_benchmark_that_can_run_there(device: str) -> None:
    available, lacking = run.find_benchmarks()
    assert not lacking
    for subject, modules in subjects.SUBJECTS.items():
        assert set(modules[device]) <= set(available), subject
        assert device == "cuda" or all(available[name].needs == "cpu" for name in modules[device])
    assert subjects.modules_of(["embed", "pack", "pack"], "cpu") == [
        "ngram_ids",
        "embed_cpu",
        "pack",
    ]


BARE = """
import sys
for package in ("triton", "transformers", "matplotlib", "cuda", "prometheus_client", "vllm"):
    sys.modules[package] = None
from benchmarks import run
run.main(sys.argv[1:])
"""


@pytest.mark.parametrize(
    ("name", "code", "told"),
    [
        ("disk", 0, "pack, warm, 16 random rows"),
        ("embed_gpu", 0, "== embed_gpu: skipped, needs triton"),
        ("nonsense", 2, "no benchmark 'nonsense'"),
    ],
)
def test_packages_that_others_need_are_no_hindrance(name: str, code: int, told: str) -> None:
    done = run_apart(BARE, name, "--smoke", "--device", "cpu")
    assert (done.returncode, told in done.stdout + done.stderr) == (code, True), done


def test_our_own_module_that_is_missing_is_no_package_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delitem(sys.modules, "benchmarks.disk", raising=False)
    monkeypatch.setitem(sys.modules, "benchmarks.disk_files", None)
    with pytest.raises(ModuleNotFoundError, match="disk_files"):
        run.find_benchmarks()


def test_one_peer_becomes_the_baseline_and_the_others_leave() -> None:
    case = make_case(
        "vLLM 0.33.0", "hugging face", "one launch", baseline="hugging face",
        targets={"one launch": 0.5},
    )  # fmt: skip
    alone = peers.with_baseline(case, "vllm")
    assert alone is not None
    assert (set(alone.candidates), alone.baseline) == ({"vLLM 0.33.0", "one launch"}, "vLLM 0.33.0")
    assert alone.targets == {}, "the promise was about another baseline"
    same = peers.with_baseline(case, "transformers")
    assert same is not None
    assert same.targets == case.targets
    assert peers.with_baseline(case, "torch") is None


def test_a_peer_that_takes_no_part_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        one.main(["state_cpu", "--smoke", "--against", "vllm"])
    assert left.value.code == one.NOTHING_TO_COMPARE
    assert "state_cpu: has nothing against vllm here" in capsys.readouterr().err


def test_a_receipt_and_a_picture_where_asked(tmp_path: Path) -> None:
    files = [tmp_path / "state.json", tmp_path / "state.svg"]
    one.main(["state_cpu", "--smoke", "--json", str(files[0]), "--plot", str(files[1])])
    receipt, drawing = receipts.read(files[0]), files[1].read_text()
    assert receipt["name"] == "state_cpu"
    assert pictures.signature(receipt) in drawing
    assert "hugging face" in drawing


def test_end_to_end_compares_first_and_draws_its_tiers(tmp_path: Path) -> None:
    files = [tmp_path / "end.json", tmp_path / "end.svg"]
    words = ["--smoke", "--device", "cpu", "--json", str(files[0]), "--plot", str(files[1])]
    one.main(["end_to_end", *words])
    (case,) = receipts.read(files[0])["cases"]
    assert case["check"]["compared"] == 4 * 4 * 2048
    tiers = json.loads(case["parameters"]["tiers"])
    assert tiers["disk"] == {"disk": 449280 * 16}
    assert tiers["host=2MiB,disk"]["host"] == 2 << 20
    assert "tokens a second" in files[1].read_text()


def test_the_same_receipt_gives_the_same_picture(tmp_path: Path) -> None:
    def build(smoke: bool) -> Iterator[harness.Case]:
        yield state_cpu.make_case(4, smoke)

    benchmark = harness.Benchmark("state_cpu", build, state_cpu.BENCHMARK.sources)
    receipt = harness.run(benchmark, smoke=True, command=["python"])
    for name in ("a.svg", "b.svg"):
        pictures.draw_receipt(receipt, tmp_path / name)
    assert (tmp_path / "a.svg").read_bytes() == (tmp_path / "b.svg").read_bytes()


def test_pictures_of_the_documentation_are_of_todays_receipts() -> None:
    """Run tools/draw_pictures.py after receipts changed."""
    read = map(receipts.read, machine.RESULTS.glob("*.json"))
    known = {pictures.signature(receipt) for receipt in read}
    found = 0
    for path in sorted(PICTURES.glob("*.svg")):
        named = re.search(r"receipt \w+ [0-9a-f]{16}", path.read_text())
        assert named is None or named[0] in known, path.name
        found += named is not None
    assert found
