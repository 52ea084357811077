"""`gramary pack` and `gramary verify`, from a checkpoint to a table that serves."""

import pytest
import torch

from gramary.cli import main
from gramary.files.source import find_sources, open_source
from gramary.files.stream import read_rows


def run(capsys, *words) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as left:
        main(list(map(str, words)))
    captured = capsys.readouterr()
    return left.value.code or 0, captured.out, captured.err


def rows_of(source) -> torch.Tensor:
    out = torch.empty(source.layout.num_rows, source.layout.row_bytes, dtype=torch.uint8)
    read_rows(source.layout, 0, len(out), out)
    return out


def test_a_pack_of_each_codec_holds_the_checkpoints_rows(checkpoint, tmp_path, capsys) -> None:
    out = tmp_path / "table.pack"
    code, text, errors = run(capsys, "pack", checkpoint, out)
    assert (code, errors) == (0, "")
    assert f"{out}: built 18,688 rows; " in text
    pack, folder = open_source(out), open_source(checkpoint)
    assert (pack.kind, pack.spec, pack.codec) == ("pack", folder.spec, folder.codec)
    assert pack.model_id == folder.model_id
    assert torch.equal(rows_of(pack), rows_of(folder))
    code, text, _ = run(capsys, "verify", out, "--against", checkpoint)
    assert code == 0
    assert "blocks (18,688 rows) are right; all 18,688 rows are those of" in text
    code, text, _ = run(capsys, "pack", checkpoint, out)
    assert (code, "reused, nothing was written" in text) == (0, True)
    assert find_sources(out) == (pack,)


def test_recoding_reports_its_error(make_checkpoint, tmp_path, capsys) -> None:
    out = tmp_path / "table.pack"
    folder = make_checkpoint(codec="bf16")
    code, text, _ = run(capsys, "pack", folder, out, "--codec", "fp8")
    assert code == 0
    assert "relative error (rms) 0.0" in text
    assert open_source(out).codec.name == "fp8"
    code, text, _ = run(capsys, "verify", out, "--against", folder)
    assert (code, "relative error (rms) 0.0" in text) == (0, True)
    code, _, errors = run(capsys, "pack", folder, out)
    assert code == 2
    assert "another table or codec" in errors
    code, _, errors = run(capsys, "pack", folder, tmp_path / "b.pack", "--codec", "int4")
    assert (code, "expected one of keep, bf16, fp8, nvfp4, got 'int4'" in errors) == (2, True)


def test_a_spoilt_pack_is_told_by_verify_and_by_loading(make_checkpoint, tmp_path, capsys) -> None:
    out = tmp_path / "table.pack"
    run(capsys, "pack", make_checkpoint(codec="fp8"), out)
    source = open_source(out)
    offset = source.layout.runs[0].parts[0].offset + 5 * 4096 + 17
    data = bytearray(out.read_bytes())
    data[offset] ^= 1
    out.write_bytes(data)
    code, _, errors = run(capsys, "verify", out)
    assert code == 2
    assert f"the block at byte {offset - 17} (rows 640 to 767" in errors or "was altered" in errors
    with pytest.raises(Exception, match=f"byte {offset - 17} was altered"):
        rows_of(open_source(out))


def test_several_layers_give_a_pack_each(make_checkpoint, tmp_path, capsys) -> None:
    folder = make_checkpoint(codec="fp8", ple_layer_ids=(1, 3))
    code, text, _ = run(capsys, "pack", folder, tmp_path / "table.pack")
    assert (code, text.count("built")) == (0, 2)
    for index in (0, 1):
        pack = open_source(tmp_path / f"table-{index}.pack", index)
        assert torch.equal(rows_of(pack), rows_of(open_source(folder, index)))
    code, _, errors = run(capsys, "verify", tmp_path / "table-1.pack", "--against", folder)
    assert (code, errors) == (0, "")
    with pytest.raises(Exception, match="table_index: expected 1, the only one"):
        open_source(tmp_path / "table-1.pack", 0)
    code, _, errors = run(capsys, "pack", folder, tmp_path / "one.pack", "--table-index", "1")
    assert code == 0
    assert open_source(tmp_path / "one.pack").spec.table_index == 1
