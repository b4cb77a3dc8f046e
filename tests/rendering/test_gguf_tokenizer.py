"""Tokenizers inside GGUF files: one written here by hand, and the real one of SmolLM2 where it is installed."""

from pathlib import Path

import gguf
import pytest

from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.config import RenderingConfig
from agentrl_jax.rendering.tokenizer import load_tokenizer
from agentrl_jax.rendering.transcript import TemplateRenderer

TOKENS = ["<|end|>", "<|im_start|>", "<|im_end|>", "a", "b", "ab", "Ġ", "Ġab", "1", "2"]
SMOLLM2 = Path(__file__).parents[2] / ".cache" / "pretrained"


def write(path: Path, *, pre: str = "smollm", template: str | None = "{{ messages[0].content }}") -> Path:
    writer = gguf.GGUFWriter(path / "model.gguf", "llama")
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(TOKENS)
    writer.add_token_types([3, 3, 3] + [1] * 7)
    writer.add_token_merges(["a b", "Ġ ab"])
    writer.add_eos_token_id(2)
    writer.add_pad_token_id(0)
    if template is not None:
        writer.add_chat_template(template)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_ids_by_hand(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(write(tmp_path))
    assert tokenizer.encode("ab ab") == [5, 7]
    assert tokenizer.encode("aab12") == [3, 5, 8, 9]  # every digit is one piece
    assert tokenizer.encode("<|im_start|>b<|im_end|>") == [1, 4, 2]
    assert tokenizer.decode([7, 8, 2]) == " ab1<|im_end|>"
    assert tokenizer.special_tokens == {"<|end|>": 0, "<|im_start|>": 1, "<|im_end|>": 2}
    assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_tokens) == (10, 0, ("<|im_end|>",))
    assert tokenizer.chat_template == "{{ messages[0].content }}"


def test_a_template_beside_the_file_counts_first(tmp_path: Path) -> None:
    (write(tmp_path) / "chat_template.jinja").write_text("mine", encoding="utf-8")
    assert load_tokenizer(tmp_path).chat_template == "mine"


def test_what_is_saved_is_the_same_tokenizer(tmp_path: Path) -> None:
    read = load_tokenizer(write(tmp_path))
    read.save(tmp_path / "saved")
    again = load_tokenizer(tmp_path / "saved")
    for text in ("ab ab12 <|im_end|>a", "bb  a"):
        assert again.encode(text) == read.encode(text)
        assert again.decode(again.encode(text)) == text
    assert (again.constants, again.eos_tokens) == (read.constants, read.eos_tokens)
    assert (again.special_tokens, again.chat_template) == (read.special_tokens, read.chat_template)


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"pre": "tekken"}, "that splits text as 'tekken' cannot be read out of a GGUF file"),
        ({"template": None}, "expected a chat template"),
    ],
)
def test_what_cannot_be_used_is_refused(tmp_path: Path, how: dict[str, str], message: str) -> None:
    write(tmp_path, **how)
    with pytest.raises(ConfigError, match=message):
        load_tokenizer(tmp_path)


def test_damage_and_several_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUX" + bytes(60))
    with pytest.raises(ConfigError, match="is no GGUF file that can be read"):
        load_tokenizer(tmp_path)
    (tmp_path / "other.gguf").touch()
    with pytest.raises(ConfigError, match=r"expected one \.gguf file"):
        load_tokenizer(tmp_path)


@pytest.mark.slow
@pytest.mark.skipif(not SMOLLM2.is_dir(), reason="tools/install_pretrained.sh has not been run")
def test_the_real_one() -> None:
    tokenizer = load_tokenizer(SMOLLM2)
    assert tokenizer.encode("Hello world") == [19556, 905]  # as published
    assert len(tokenizer.encode("2026")) == 4
    text = "it's\n\n  naïve 你好 🙂 <|im_start|>x<|im_end|>"
    assert tokenizer.decode(tokenizer.encode(text)) == text
    renderer = TemplateRenderer(tokenizer, config=RenderingConfig(chat_template="hermes"))
    assert renderer.stop_ids == (2,)
    assert renderer.config.chat_template == "hermes"
