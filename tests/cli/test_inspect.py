"""`gramary inspect` shows what the files hold, for people and for machines."""

import json

import pytest

from gramary.cli import main
from gramary.cli.inspect import PLACEMENTS, cost_placements
from gramary.files.source import open_source
from gramary.settings import Settings


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(["inspect", *map(str, words)])
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def test_the_report_names_geometry_codec_files_and_scale(make_checkpoint, capsys):
    folder = make_checkpoint(codec="fp8", max_file_bytes=150_000)
    code, out, err = run(capsys, folder)
    assert (code, err) == (0, "")
    text = " ".join(out.split())
    for expected in (
        "n-gram table 0, decoder layer 1",
        "rows 18,688, of which 18,",
        "16 (8 for each of the n-grams 2 to 3)",
        "row 32 values in 32 bytes",
        "16 rows, 512 bytes",
        "codec fp8, scale 0.000",
        "seed 1234, vocabulary 260, end of sequence 256",
        "shards 12 of 1,558 rows in",
        "weight_scale (BF16) in model-",
        "584.0 KiB (598,016 bytes)",
        open_source(folder).model_id,
    ):
        assert expected in text, expected
    for placement in PLACEMENTS:
        assert placement in text


def test_json_says_the_same_and_parses_strictly(checkpoint, capsys):
    code, out, _ = run(capsys, checkpoint, "--json")
    (table,) = json.loads(out)["tables"]
    source = open_source(checkpoint)
    assert code == 0
    assert table["geometry"]["multipliers"] == list(source.spec.multipliers)
    assert table["geometry"]["num_rows"] == source.layout.num_rows
    assert table["codec"] == {
        "name": source.codec.name,
        "row_dim": source.codec.row_dim,
        "scale": source.codec.scale,
    }
    assert table["row_bytes"] * 16 == table["token_bytes"]
    assert table["table_bytes"] == source.layout.nbytes
    assert [file["path"] for file in table["files"]] == [file.path for file in source.layout.files]
    assert table["details"] == source.details


def test_every_table_of_a_model_is_shown(make_checkpoint, capsys):
    folder = make_checkpoint(codec="nvfp4", ple_layer_ids=(2, 3))
    _, out, _ = run(capsys, folder)
    assert "n-gram table 0, decoder layer 1" in out
    assert "n-gram table 1, decoder layer 2" in out
    _, out, _ = run(capsys, folder, "--json")
    assert [table["geometry"]["decoder_layer"] for table in json.loads(out)["tables"]] == [1, 2]


@pytest.mark.behaviour(36)
def test_a_wrong_folder_is_one_paragraph_and_code_2(copy_checkpoint, capsys, tmp_path):
    """Behaviour 36: the message says what to do next."""
    code, out, err = run(capsys, tmp_path / "none")
    assert (code, out) == (2, "")
    assert "download the model first" in err
    folder = copy_checkpoint(codec="fp8")
    (folder / "model.safetensors").write_bytes(b"x" * 7)
    code, out, err = run(capsys, folder, "--json")
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
    assert "model.safetensors: no valid safetensors file" in err


@pytest.mark.needs("no_gpu")
def test_placements_cost_the_tables_bytes_and_say_what_is_short(make_checkpoint):
    source = open_source(make_checkpoint(codec="fp8"))
    costs = {each["placement"]: each for each in cost_placements(source, Settings())}
    assert set(costs) == set(PLACEMENTS)
    for cost in costs.values():
        tiers = [cost[f"{tier}_bytes"] for tier in ("device", "host", "disk")]
        assert sum(tiers) == source.layout.nbytes
    assert costs["device"]["needs_gpu"]
    assert not costs["device"]["fits"]
    assert costs["host"]["fits"]
    assert costs["disk"]["disk_bytes"] == source.layout.nbytes


def test_memory_that_is_too_small_is_told_in_bytes(make_checkpoint):
    source = open_source(make_checkpoint(codec="fp8"))
    settings = Settings(memory_limit_bytes=100_000, host_gib=1)
    costs = {each["placement"]: each for each in cost_placements(source, settings)}
    assert not costs["host"]["fits"]
    assert costs["host"]["missing_bytes"] == source.layout.nbytes - 100_000
    assert 0 < costs["host=auto,disk"]["host_bytes"] <= 100_000
    assert costs["host=auto,disk"]["fits"]
