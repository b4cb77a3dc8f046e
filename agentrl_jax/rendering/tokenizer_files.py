"""The files of a tokenizer folder, as `save_pretrained` writes them."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def write_tokenizer(
    folder: Path,
    backend: Any,
    *,
    chat_template: str,
    constants: Mapping[str, str | None],
    eos_ids: Sequence[int] = (),
) -> None:
    """Write a `tokenizers` backend with its template and its special-token variables (`eos_token`, …) to `folder`.

    eos_ids: all that the model's files name as ends, `eos_token` or not.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        **constants,
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": False,
        "model_max_length": 1_000_000,
    }
    backend.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    write_template(folder, chat_template)
    if eos_ids:
        generation = {"eos_token_id": list(eos_ids)}
        (folder / "generation_config.json").write_text(json.dumps(generation, indent=2) + "\n", encoding="utf-8")


def write_template(folder: Path, source: str) -> None:
    """Write a chat template, which counts before one in `tokenizer_config.json`."""
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
