"""The small tokenizer: exact on any text, the same in every process, readable by transformers."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tokenizers
from hypothesis import example, given
from hypothesis import strategies as st

from agentrl_jax.env import Message
from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.tokenizer import ChatTokenizer, byte_alphabet, load_tokenizer
from agentrl_jax.rendering.train_tokenizer import train_tokenizer
from agentrl_jax.testing.tokenizers import toy_tokenizer
from tests.rendering.chat import (
    ENTITIES,
    SHORT,
    assistant,
    call,
    small_folder,
    small_renderer,
    training_texts,
    transformers_tokenizer,
    with_template,
    write_config,
)

REPOSITORY = Path(__file__).resolve().parents[2]


@given(st.text())
@example("Bob Bobby, teapot\n<|im_start|>user\n  Zürich Ġ Ċ é \x00 😀")
def test_decoding_an_encoded_text_gives_it_back(text: str) -> None:
    tokenizer = small_renderer().tokenizer
    assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode(tokenizer.encode_plain(text)) == text
    assert tokenizer.encode(text) == transformers_tokenizer(small_folder()).encode(text, add_special_tokens=False)


def test_what_is_no_text_becomes_replacement_characters() -> None:
    tokenizer = small_renderer().tokenizer
    first_byte = tokenizer.encode("é")[0]
    assert tokenizer.decode([first_byte]) == "\ufffd"
    assert tokenizer.decode([*tokenizer.encode("a"), 10**6]) == "a\ufffd"
    assert tokenizer.decode(tokenizer.encode("a\ud800b\udc00")) == "a\ufffdb\ufffd"
    assert tokenizer.decode(tokenizer.encode("\ud83d\ude00")) == "😀"


def test_entity_words_are_one_id_wherever_they_stand_alone() -> None:
    tokenizer = small_renderer().tokenizer
    whole = {word: tokenizer.encode(word) for word in ENTITIES}
    assert {len(ids) for ids in whole.values()} == {1}
    for text in ('"teapot"', "the teapot, hall", "teapot\n", "<tool_response>\nteapot\n</tool_response>"):
        assert whole["teapot"][0] in tokenizer.encode(text)
    assert whole["Bob"][0] not in tokenizer.encode("Bobby")


def test_the_text_around_entities_collapses() -> None:
    renderer = small_renderer()
    assert len(renderer.encode_turn(_look("kitchen"))) <= 6
    assert len(renderer.encode_turn(_look("kitchen"))) == len(renderer.encode_turn(_look("teapot")))


def _look(room: str) -> Message:
    return assistant("", call("look", room=room))


def test_the_vocabulary_keeps_to_its_size_and_starts_with_the_special_tokens() -> None:
    tokenizer = small_renderer().tokenizer
    assert tokenizer.special_tokens == {"<|endoftext|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert 256 + 3 + len(ENTITIES) < tokenizer.vocab_size <= 440
    assert tokenizer.pad_id == 0


def test_training_gives_the_same_file_in_every_process(tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path\n"
        "from agentrl_jax.rendering.train_tokenizer import train_tokenizer\n"
        "from tests.rendering.chat import SHORT, ENTITIES, training_texts\n"
        "train_tokenizer(training_texts(), Path(sys.argv[1]), vocab_size=440, chat_template=SHORT,"
        " keep_whole=list(set(ENTITIES)))"
    )
    environment = {**os.environ, "PYTHONHASHSEED": "4711", "RAYON_NUM_THREADS": "3"}
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], cwd=REPOSITORY, env=environment, check=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (tmp_path / name).read_bytes() == (small_folder() / name).read_bytes()


def test_importing_the_renderer_loads_neither_transformers_nor_jax_nor_trio() -> None:
    script = (
        "import sys, agentrl_jax.rendering.transcript, agentrl_jax.rendering.train_tokenizer\n"
        "print([name for name in ('transformers', 'torch', 'jax', 'trio') if name in sys.modules])"
    )
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=True
    )
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_words_that_are_not_ascii_are_left_to_the_merges(tmp_path: Path) -> None:
    words = ("Zürich", "é", "Ġ", "Oslo")
    folder = train_tokenizer(["Zürich Oslo é"] * 9, tmp_path, vocab_size=290, chat_template=SHORT, keep_whole=words)
    tokenizer, other = load_tokenizer(folder), transformers_tokenizer(folder)
    assert len(tokenizer.encode("Oslo")) == 1
    for word in words:
        ids = tokenizer.encode(f"{word} {word}")
        assert tokenizer.decode(ids) == other.decode(ids) == f"{word} {word}"


def test_a_shared_opening_is_one_id_and_leaves_its_merges_to_other_texts(tmp_path: Path) -> None:
    opening = 'Look #0 up. <tools>\n{"name": "look"}\n</tools>'
    texts = [f"<|im_start|>system\n{opening}<|im_end|>\nthe {word} is here" for word in ("teapot", "kettle")]
    folder = train_tokenizer(
        texts, tmp_path, vocab_size=290, chat_template=SHORT, keep_whole=["#0", "teapot", "kettle"], openings=[opening]
    )
    tokenizer, other = load_tokenizer(folder), transformers_tokenizer(folder)
    for text in (texts[0], opening, f"x{opening}y", opening[:-1], f"{opening[:-1]}#0"):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == other.decode(ids) == text
        assert ids == other.encode(text, add_special_tokens=False)
    (whole,) = tokenizer.encode(opening)
    start, role = tokenizer.encode("<|im_start|>"), tokenizer.encode("system\n")
    assert tokenizer.encode(texts[0])[: len(start + role) + 1] == [*start, *role, whole]
    assert len(tokenizer.encode("\nthe ")) == len(tokenizer.encode(" is here")) == 1  # nothing was spent on the opening


def test_added_tokens_of_other_alphabets_are_decoded_as_written() -> None:
    backend = tokenizers.Tokenizer.from_file(str(small_folder() / "tokenizer.json"))
    backend.add_tokens([tokenizers.AddedToken("Zürich", normalized=False)])
    tokenizer = ChatTokenizer(backend, chat_template=SHORT, constants={}, eos_tokens=())
    assert len(tokenizer.encode("Zürich")) == 1
    assert tokenizer.decode(tokenizer.encode("in Zürich")) == "in Zürich"


def test_the_byte_alphabet_is_the_librarys() -> None:
    table = byte_alphabet()
    assert sorted(table.values()) == list(range(256))
    assert sorted(table) == sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"vocab_size": 264, "keep_whole": ENTITIES}, "vocab_size must be above 264 .*5 texts to keep whole.*got 264"),
        ({"vocab_size": 260, "openings": ["a b"]}, "vocab_size must be above 260 .*1 texts to keep whole.*got 260"),
        ({"vocab_size": 400, "openings": ["a<|im_end|>"]}, r"special tokens, got 'a<\|im_end\|>'"),
        ({"vocab_size": 400, "keep_whole": ["a<|im_end|>"]}, r"special tokens, got 'a<\|im_end\|>'"),
    ],
)
def test_training_refuses_what_cannot_work(arguments: dict, message: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        train_tokenizer(training_texts(), tmp_path, chat_template=SHORT, **arguments)


def test_folders_of_other_makers(tmp_path: Path) -> None:
    folder = with_template(small_folder(), SHORT, tmp_path / "other")
    (folder / "chat_template.jinja").unlink()
    with pytest.raises(ConfigError, match="expected a chat template"):
        load_tokenizer(folder)
    write_config(folder, chat_template="a {{ x }}", eos_token={"content": "<|endoftext|>", "lstrip": False})
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [2, 0]}))
    loaded = load_tokenizer(folder)
    assert (loaded.chat_template, loaded.eos_tokens) == ("a {{ x }}", ("<|endoftext|>", "<|im_end|>"))
    several = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    write_config(folder, chat_template=several, eos_token=None)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": "<|im_start|>"}))
    loaded = load_tokenizer(folder)
    assert (loaded.chat_template, loaded.eos_tokens) == (
        "with tools",
        ("<|im_start|>", "<|im_end|>", "<|endoftext|>"),
    )
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 0}))
    assert load_tokenizer(folder).eos_tokens == ("<|im_start|>", "<|endoftext|>")
    with pytest.raises(ConfigError, match=r"with a tokenizer.json, found none in .*nowhere"):
        load_tokenizer(tmp_path / "nowhere")


def test_a_saved_tokenizer_is_the_same(tmp_path: Path) -> None:
    made = toy_tokenizer("glm")
    made.save(tmp_path)
    loaded = load_tokenizer(tmp_path)
    assert loaded.eos_tokens == made.eos_tokens == ("<|endoftext|>", "<|user|>", "<|observation|>")
    assert (loaded.special_tokens, loaded.constants) == (made.special_tokens, made.constants)


def test_truncation_and_padding_that_a_folder_asks_for_are_ignored(tmp_path: Path) -> None:
    folder = with_template(small_folder(), SHORT, tmp_path / "truncating")
    backend = tokenizers.Tokenizer.from_file(str(folder / "tokenizer.json"))
    backend.enable_truncation(2)
    backend.enable_padding(length=64)
    backend.save(str(folder / "tokenizer.json"))
    text = "a rather long text"
    assert load_tokenizer(folder).encode(text) == small_renderer().tokenizer.encode(text)


def test_tokenizers_that_are_not_byte_level_are_decoded_by_their_own_rules() -> None:
    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"hello": 0, "there": 1, "?": 2}, unk_token="?"))
    backend.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace()
    backend.decoder = tokenizers.decoders.Metaspace()
    backend = tokenizers.Tokenizer.from_str(
        backend.to_str().replace('"hello"', '"▁hello"').replace('"there"', '"▁there"')
    )
    tokenizer = ChatTokenizer(backend, chat_template="", constants={}, eos_tokens=())
    assert tokenizer.decode(tokenizer.encode("hello there")) == "hello there"
    assert tokenizer.pad_id is None


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json", "generation_config.json"])
def test_a_damaged_file_is_named(name: str, tmp_path: Path) -> None:
    shutil.copytree(small_folder(), tmp_path / "folder")
    (tmp_path / "folder" / name).write_text("{")
    with pytest.raises(ConfigError, match=rf"folder/{name} (is no tokenizer|must hold JSON)"):
        load_tokenizer(tmp_path / "folder")
