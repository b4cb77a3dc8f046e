"""Trains the small tokenizer of a small model: template text collapses, entity words stay whole.

Byte-level BPE without a word-splitting pattern lets the fixed text of calls and answers become a handful of tokens.
Entity words are added tokens, so each is one id wherever it stands, which is what makes copying them learnable.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from os import PathLike
from pathlib import Path

import tokenizers
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers

from agentrl_jax.errors import ConfigError
from agentrl_jax.rendering.templates import IM_END, IM_START
from agentrl_jax.rendering.tokenizer_files import write_tokenizer

END_OF_TEXT = "<|endoftext|>"
SPECIAL_TOKENS = (END_OF_TEXT, IM_START, IM_END)
# The role line is a token of its own wherever it stands: otherwise a merge could join the generation prompt with the
# text after it, and a sampled turn would not be what the template's rendering of it is encoded as.
_ROLE_LINE = "(?:system|user|assistant)\n"
_MAX_TOKEN_CHARS = 64


def train_tokenizer(
    texts: Iterable[str],
    folder: str | PathLike[str],
    *,
    vocab_size: int,
    chat_template: str,
    keep_whole: Sequence[str] = (),
    openings: Sequence[str] = (),
) -> Path:
    """Train on rendered conversations and write a tokenizer folder that transformers loads too; return the folder.

    texts: as the template renders them, special tokens included. vocab_size: the most ids it may have, of which 256
    are the bytes, so that any text can be encoded and decoded exactly. keep_whole: entity words; each becomes one
    token wherever it stands as a word of its own. openings: long texts that many conversations share, such as a system
    message with its tools; each becomes one token. Neither may be empty; those that are not ASCII are left to the
    merges (transformers' byte-level decoder garbles added tokens of other characters). The result depends on the
    arguments alone: the same in every process. Raises ConfigError if vocab_size leaves no room for merges.
    """
    words, blocks = (sorted({t for t in given if t and t.isascii()}) for given in (keep_whole, openings))
    forged = [text for text in (*words, *blocks) if any(token in text for token in SPECIAL_TOKENS)]
    if forged:
        raise ConfigError(f"what is kept whole must not contain special tokens, got {forged[0]!r}")
    num_whole = len(words) + len(blocks)
    least = 256 + len(SPECIAL_TOKENS) + num_whole
    if vocab_size <= least:
        raise ConfigError(
            f"vocab_size must be above {least} (256 bytes, {len(SPECIAL_TOKENS)} special tokens, {num_whole} texts "
            f"to keep whole), got {vocab_size}"
        )
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_ROLE_LINE), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - num_whole,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        max_token_length=_MAX_TOKEN_CHARS,
        show_progress=False,
    )
    backend.train_from_iterator(_plain_pieces(texts, words, blocks), trainer)
    backend.add_tokens([AddedToken(word, single_word=True, normalized=False) for word in words])
    backend.add_tokens([AddedToken(block, normalized=False) for block in blocks])
    constants = {"bos_token": None, "eos_token": IM_END, "pad_token": END_OF_TEXT}
    write_tokenizer(Path(folder), backend, chat_template=chat_template, constants=constants)
    return Path(folder)


def _plain_pieces(texts: Iterable[str], words: Sequence[str], blocks: Sequence[str]) -> Iterator[str]:
    # The trainer does not know added tokens; what it counts must be what BPE will see.
    special = "|".join(map(re.escape, (*_longest_first(blocks), *SPECIAL_TOKENS)))
    whole = rf"|(?<!\w)(?:{'|'.join(map(re.escape, _longest_first(words)))})(?!\w)" if words else ""
    separator = re.compile(special + whole)
    for text in texts:
        yield from filter(None, separator.split(text))


def _longest_first(texts: Sequence[str]) -> list[str]:
    return sorted(texts, key=lambda text: (-len(text), text))
