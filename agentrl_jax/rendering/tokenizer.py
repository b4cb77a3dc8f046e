"""A tokenizer folder as the transcript needs it: exact, thread-safe, without transformers.

The folder is what `save_pretrained` writes: `tokenizer.json`, `tokenizer_config.json` and, unless the config holds
it, `chat_template.jinja`; or a GGUF file with a tokenizer in it. The `tokenizers` backend is never reconfigured after
loading: transformers' wrapper changes its settings on every call, which makes concurrent calls fail with "Already
borrowed".
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import tokenizers

from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.gguf_tokenizer import gguf_in, read_gguf_tokenizer
from agentrl_jax.rendering.tokenizer_files import write_tokenizer

_REPLACEMENT = "\ufffd".encode()


class ChatTokenizer:
    """One tokenizer with its chat template.

    chat_template: Jinja text. constants: the template's special-token variables (`bos_token`, …).
    eos_tokens: spellings that the model's files name as ends; the template may close turns with others.
    """

    def __init__(
        self, backend: Any, *, chat_template: str, constants: Mapping[str, str], eos_tokens: Sequence[str]
    ) -> None:
        self._backend = backend
        self.chat_template = chat_template
        self.constants = dict(constants)
        self.eos_tokens = tuple(eos_tokens)
        added = backend.get_added_tokens_decoder()
        self.special_tokens: dict[str, int] = {token.content: id_ for id_, token in added.items() if token.special}
        self._bytes = _bytes_of_ids(backend, {id_: token.content for id_, token in added.items()})

    @property
    def vocab_size(self) -> int:
        """One more than the largest id: the number of embedding rows that a model needs."""
        ids: dict[str, int] = self._backend.get_vocab(with_added_tokens=True)
        return max(ids.values()) + 1

    @property
    def pad_id(self) -> int | None:
        """The id of the folder's `pad_token`, None if it names none."""
        return self.special_tokens.get(self.constants.get("pad_token", ""))

    def save(self, folder: Path) -> None:
        """Write the files that `load_tokenizer` reads to `folder`."""
        write_tokenizer(
            folder,
            self._backend,
            chat_template=self.chat_template,
            constants=self.constants,
            eos_ids=[self._backend.token_to_id(token) for token in self.eos_tokens],
        )

    def encode(self, text: str) -> list[int]:
        """Return the ids of `text`. Special tokens are recognised; nothing is added in front or behind.

        Unpaired surrogates, which no UTF-8 can carry, count as U+FFFD.
        """
        ids: list[int] = self._backend.encode(_without_surrogates(text), add_special_tokens=False).ids
        return ids

    def encode_plain(self, text: str) -> list[int]:
        """Return the ids of `text` as if the vocabulary had no added tokens: `<|im_end|>` is just characters."""
        text = _without_surrogates(text)
        if self._backend.normalizer is not None:
            text = self._backend.normalizer.normalize_str(text)
        words = [text]
        if self._backend.pre_tokenizer is not None:
            words = [word for word, _ in self._backend.pre_tokenizer.pre_tokenize_str(text)]
        return [token.id for word in words for token in self._backend.model.tokenize(word)]

    def decode(self, ids: Iterable[int]) -> str:
        """Return the text that `ids` spell, special tokens included, spaces untouched.

        Inverse of `encode` for byte-level tokenizers. Bytes that are not UTF-8, and ids outside the vocabulary
        (rows that pad an embedding), become U+FFFD.
        """
        if self._bytes is None:
            text: str = self._backend.decode([int(id_) for id_ in ids], skip_special_tokens=False)
            return text
        table = self._bytes
        return b"".join([table.get(id_, _REPLACEMENT) for id_ in ids]).decode("utf-8", errors="replace")


def load_tokenizer(folder: str | PathLike[str]) -> ChatTokenizer:
    """Load a tokenizer folder. Raises ConfigError naming the file or entry that is missing or damaged."""
    root = Path(folder)
    if not (root / "tokenizer.json").is_file():
        if (file := gguf_in(root)) is not None:
            return _from_gguf(root, file)
        raise ConfigError(f"expected a tokenizer folder with a tokenizer.json, found none in {root}")
    try:
        backend = tokenizers.Tokenizer.from_file(str(root / "tokenizer.json"))
    except Exception as error:  # the library raises nothing narrower
        raise ConfigError(f"{root / 'tokenizer.json'} is no tokenizer: {error}") from error
    backend.no_truncation()
    backend.no_padding()
    config = _read_json(root / "tokenizer_config.json")
    named = {**_read_json(root / "special_tokens_map.json"), **config}
    constants = {name: _spelling(token) for name, token in named.items() if name.endswith("_token") and token}
    constants = {name: token for name, token in constants.items() if token}
    eos_ids = _read_json(root / "generation_config.json").get("eos_token_id", [])
    eos_ids = eos_ids if isinstance(eos_ids, list) else [eos_ids]
    eos_tokens = [constants.get("eos_token"), *(backend.id_to_token(id_) for id_ in eos_ids if id_ is not None)]
    return ChatTokenizer(
        backend,
        chat_template=_chat_template(root, config),
        constants=constants,
        eos_tokens=tuple(dict.fromkeys(token for token in eos_tokens if token)),
    )


def _from_gguf(root: Path, file: Path) -> ChatTokenizer:
    read = read_gguf_tokenizer(file)
    return ChatTokenizer(
        read.backend,
        chat_template=_chat_template(root, {"chat_template": read.chat_template}),
        constants=read.constants,
        eos_tokens=tuple(token for name, token in read.constants.items() if name == "eos_token"),
    )


def _chat_template(root: Path, config: Mapping[str, Any]) -> str:
    file = root / "chat_template.jinja"
    if file.is_file():
        return file.read_text(encoding="utf-8")
    template = config.get("chat_template")
    if isinstance(template, list):
        # Several templates in one folder: the one for tools is meant for conversations like ours.
        by_name = {entry["name"]: entry["template"] for entry in template}
        template = by_name.get("tool_use", by_name.get("default"))
    if not isinstance(template, str):
        raise ConfigError(
            f"expected a chat template (chat_template.jinja, or chat_template in tokenizer_config.json) in {root}; "
            "a base model has none: save one, for example rendering.templates.hermes_template()"
        )
    return template


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ConfigError(f"{file} must hold JSON: {error}") from error
    return value if isinstance(value, dict) else {}


def _spelling(token: Any) -> str:
    content = token.get("content", "") if isinstance(token, dict) else token
    return content if isinstance(content, str) else ""


def _without_surrogates(text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def _bytes_of_ids(backend: Any, added: Mapping[int, str]) -> dict[int, bytes] | None:
    """Each id's bytes, for a byte-level tokenizer; None for others.

    Not the library's decoder: it reads an added token such as "Zürich" as if its characters stood for bytes.
    """
    if type(backend.decoder).__name__ != "ByteLevel":
        return None
    byte_of = byte_alphabet()
    table = {}
    for token, id_ in backend.get_vocab(with_added_tokens=False).items():
        table[id_] = bytes([byte_of[char] for char in token]) if all(c in byte_of for c in token) else token.encode()
    return table | {id_: content.encode() for id_, content in added.items()}


def byte_alphabet() -> dict[str, int]:
    """Return the character of byte-level BPE -> the byte it stands for (GPT-2's table).

    >>> byte_alphabet()["A"], byte_alphabet()["Ġ"]
    (65, 32)
    """
    printable = [*range(ord("!"), ord("~") + 1), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + i): byte for i, byte in enumerate(others)}
