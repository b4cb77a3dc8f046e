"""What `envs.data verify` says of folders that are whole, incomplete, broken or empty."""

import json
import lzma
import re

import pytest

from envs.data import main, verify_pack
from envs.data_packs import PACKS

FREEBASE = next(pack for pack in PACKS if pack.folder == "fb15k237")
ALFWORLD = next(pack for pack in PACKS if pack.folder == "alfworld")


@pytest.mark.data
@pytest.mark.slow
def test_the_packs_are_complete(data_folder, capsys):
    assert main(["verify", str(data_folder), "--envs", "alfworld,kg"]) == 0
    said = capsys.readouterr().out
    assert re.search(r"complete +alfworld/train.jsonl.xz +3,553 entries", said)
    assert re.search(r"complete +wikitablequestions/train.json.xz +12,533 entries", said)
    assert re.search(r"ready +alfworld +3,553 tasks to train on, 140 to evaluate; data sets valid_seen", said)
    assert "broken" not in said
    assert "incomplete" not in said
    # Every folder that is there is known.
    assert {path.name for path in data_folder.iterdir() if path.is_dir()} == {pack.folder for pack in PACKS}


def test_an_empty_folder_is_told_what_is_published_where(tmp_path, capsys):
    assert main(["verify", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    for pack in PACKS:
        assert f"missing    {pack.folder}/" in said
    assert "OpenKE, benchmarks/FB15K237" in said
    assert "not ready  alfworld" in said
    assert "://" not in said  # projects, not hosts


def test_an_environment_that_must_be_ready_decides_the_exit_code(tmp_path, capsys):
    assert main(["verify", str(tmp_path), "--envs", "kg"]) == 1
    assert main(["verify", str(tmp_path), "--envs", "moon"]) == 2
    assert main(["verify", str(tmp_path / "nowhere")]) == 2
    said = capsys.readouterr().err
    assert "no environment moon" in said
    assert "is no folder" in said


def write(folder, name, text):
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(lzma.compress(text.encode()) if name.endswith(".xz") else text.encode())


def test_files_that_are_broken_or_short_are_named(tmp_path):
    write(tmp_path, "fb15k237/entities.tsv.xz", "/m/1\tA\n/m/2\n")
    write(tmp_path, "fb15k237/relations.txt", "/a/b\n")
    (tmp_path / "fb15k237" / "valid_h_t_r.txt.xz").write_bytes(b"no xz")
    (tmp_path / "fb15k237" / "test_h_t_r.txt.xz").write_bytes(lzma.compress(b"1 2 3\n")[:-20])
    found = {finding.path: (finding.state, finding.note) for finding in verify_pack(tmp_path, FREEBASE)}
    assert found["fb15k237/entities.tsv.xz"] == ("broken", "line 2: expected 2 columns, got '/m/2'")
    assert found["fb15k237/relations.txt"] == ("incomplete", "1 entries; as published: 237")
    assert found["fb15k237/valid_h_t_r.txt.xz"][0] == found["fb15k237/test_h_t_r.txt.xz"][0] == "broken"
    assert found["fb15k237/train_h_t_r.txt"][0] == "missing"
    assert main(["verify", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("name", "text", "note"),
    [
        ("train.jsonl", '{"path": "p"}', "line 1: task, walkthrough, problem, cc missing"),
        ("train.jsonl.xz", "{", "Expecting property name"),
        ("train.jsonl", "3", "line 1: expected an object, got int"),
        ("common.json", "[]", "the file: expected an object, got list"),
        ("common.json", json.dumps({"pddl_domain": ""}), "the file: grammar_template, can_contain missing"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(tmp_path, name, text, note):
    write(tmp_path, f"alfworld/{name}", text)
    (finding,) = [f for f in verify_pack(tmp_path, ALFWORLD) if f.path == f"alfworld/{name}"]
    assert finding.state == "broken"
    assert note in finding.note


def test_a_list_is_counted_and_its_entries_looked_at(tmp_path):
    pack = next(pack for pack in PACKS if pack.folder == "knowledgegraph")
    write(tmp_path, "knowledgegraph/dev.json", json.dumps([{"question": "?"}]))
    write(tmp_path, "knowledgegraph/std.json", json.dumps({"a": 1}))
    found = {finding.path: finding.note for finding in verify_pack(tmp_path, pack)}
    assert found["knowledgegraph/dev.json"] == "entry 1: entities, actions, answer missing"
    assert found["knowledgegraph/std.json"] == "expected a list, got dict"
