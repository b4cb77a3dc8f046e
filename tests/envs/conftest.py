"""Two data folders for the Freebase tests: a tiny hand-made one, and the real one where it is present."""

import lzma
import os

import pytest

# Georgia stands twice (a country and a state), as 499 entities of the real slice do.
TINY_ENTITIES = ["/m/0a\tAnna", "/m/0b\tBerlin", "/m/0g1\tGeorgia", "/m/0g2\tGeorgia", "/m/0c\tCarl", "/m/0d\tDora"]
TINY_RELATIONS = ["/person/born_in", "/person/knows", "/place/mayor"]
# head, tail, relation; the last line of a file has no newline, as in the real ones.
TINY_TRIPLES = {
    "train": ["0 1 0", "0 5 1", "0 4 1", "1 4 2", "4 2 0", "4 2 0"],
    "valid": ["5 1 0"],
    "test": ["3 5 2"],
}


def write_slice(data, entities=TINY_ENTITIES, relations=TINY_RELATIONS, triples=TINY_TRIPLES):
    folder = data / "fb15k237"
    folder.mkdir(parents=True)
    files = {"entities.tsv.xz": entities, "relations.txt.xz": relations}
    files |= {f"{part}_h_t_r.txt.xz": lines for part, lines in triples.items()}
    for name, lines in files.items():
        (folder / name).write_bytes(lzma.compress("\n".join(lines).encode()))
    return data


@pytest.fixture
def tiny_data(tmp_path):
    return write_slice(tmp_path / "tiny")


@pytest.fixture
def write_data():
    """The function that writes a slice from its lines, for broken ones."""
    return write_slice


@pytest.fixture(scope="session")
def real_data(data_folder):
    if not (data_folder / "fb15k237").is_dir() and not os.environ.get("CI"):  # there its absence is a failure
        pytest.skip(f"no real task data in {data_folder} (set AGENTRL_TEST_DATA)")
    return data_folder
