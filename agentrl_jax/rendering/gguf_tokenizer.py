"""The tokenizer inside a GGUF file, for models that come in no other form.

A GGUF file holds the vocabulary and merges of byte-level BPE, and only a name for how text is split before. We read
those whose splitting we know.
"""

from pathlib import Path
from typing import Any, NamedTuple

import tokenizers
from tokenizers import AddedToken, decoders, models, pre_tokenizers

from agentrl_jax.errors import ConfigError

_CONTROL = 3  # llama.cpp's token types
_VARIABLES = {"bos": "bos_token", "eos": "eos_token", "unknown": "unk_token", "padding": "pad_token"}


class GgufTokenizer(NamedTuple):
    """constants: the special-token variables of templates. chat_template: None if the file has none."""

    backend: Any
    constants: dict[str, str]
    chat_template: str | None


def gguf_in(folder: Path) -> Path | None:
    """The GGUF file of a folder, None if it has none. Raises ConfigError for several."""
    files = sorted(folder.glob("*.gguf"))
    if len(files) > 1:
        raise ConfigError(f"{folder}: expected one .gguf file, got {', '.join(file.name for file in files)}")
    return files[0] if files else None


def read_gguf_tokenizer(path: Path) -> GgufTokenizer:
    """Raises ConfigError if the `gguf` package is missing, or the file's tokenizer is of a kind that we do not know."""
    values = _tokenizer_values(path)
    kind, split = values.get("ggml.model"), values.get("ggml.pre")
    tokens, merges, types = (values.get(f"ggml.{name}") for name in ("tokens", "merges", "token_type"))
    if kind != "gpt2" or split not in _SPLITTERS or not tokens or not merges or not types:
        raise ConfigError(
            f"{path}: a tokenizer of kind {kind!r} that splits text as {split!r} cannot be read out of a GGUF file "
            f"(gpt2 with {', '.join(_SPLITTERS)} can): put the model's tokenizer.json and tokenizer_config.json "
            "beside it"
        )
    vocabulary = {token: number for number, token in enumerate(tokens)}
    pairs = [tuple(merge.split(" ", 1)) for merge in merges]
    backend = tokenizers.Tokenizer(models.BPE(vocab=vocabulary, merges=pairs))
    backend.pre_tokenizer = _SPLITTERS[split]
    backend.decoder = decoders.ByteLevel()
    control = [token for token, type_ in zip(tokens, types, strict=True) if type_ == _CONTROL]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    ids = {variable: values.get(f"ggml.{name}_token_id") for name, variable in _VARIABLES.items()}
    return GgufTokenizer(
        backend=backend,
        constants={variable: tokens[number] for variable, number in ids.items() if number is not None},
        chat_template=values.get("chat_template"),
    )


def _tokenizer_values(path: Path) -> dict[str, Any]:
    try:
        import gguf
    except ImportError as error:
        raise ConfigError(f"{path}: reading GGUF files needs the gguf package: pip install gguf") from error
    try:
        reader = gguf.GGUFReader(path)
    except (OSError, ValueError, IndexError) as error:
        raise ConfigError(f"{path} is no GGUF file that can be read: {error}") from error
    prefix = "tokenizer."
    return {
        name.removeprefix(prefix): field.contents() for name, field in reader.fields.items() if name.startswith(prefix)
    }


_SPLITTERS: dict[str, Any] = {
    "smollm": pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    ),
}
