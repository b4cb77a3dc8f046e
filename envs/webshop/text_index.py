"""Full-text search as the published index does it: Lucene's BM25 over English text.

Text is split at word boundaries, lower-cased, freed of stop words and stemmed by Porter's algorithm. A document of
length `l` scores, for each word `w` of the query (once per occurrence),

    idf(w) * f / (f + k1 * (1 - b + b * l' / mean l)),   idf(w) = ln(1 + (N - n + 0.5) / (n + 0.5)),

f: occurrences of w in the document; n: documents with w, of N; l': l as Lucene stores it, in one byte. k1 = 0.9 and
b = 0.4 are Pyserini's. Equal scores go by position. Source: Lucene's BM25Similarity and SmallFloat.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import log1p
from threading import Lock

import numpy as np
import numpy.typing as npt
import snowballstemmer  # type: ignore[import-untyped]

K1 = 0.9
B = 0.4
# Lucene's English stop words.
STOP_WORDS = {
    *("a", "an", "and", "are", "as", "at", "be", "but", "by", "for", "if", "in", "into", "is", "it", "no"),
    *("not", "of", "on", "or", "such", "that", "the", "their", "then", "there", "these", "they", "this", "to"),
    *("was", "will", "with"),
}
# Words in the sense of Unicode's word boundaries: some marks join letters, and some digits, into one word.
_WORD = re.compile(r"\w+(?:(?:(?<=[^\W\d_])[.:\xb7'\u2019](?=[^\W\d_])|(?<=\d)[.,;'\u2019](?=\d))\w+)*")
_POSSESSIVE = re.compile(r"['\u2019][sS]$")
# A stemmer keeps the word it works on.
_STEMMER = snowballstemmer.stemmer("porter")
_STEMMER_LOCK = Lock()
# Lengths below this are stored as they are; longer ones with four significant bits.
_NUM_EXACT = 24
_MAX_QUERIES = 4096

Docs = npt.NDArray[np.int32]
Weights = npt.NDArray[np.float64]


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a lower-case word."""
    with _STEMMER_LOCK:
        stemmed: str = _STEMMER.stemWord(word)
    return stemmed


def words_of(text: str) -> list[str]:
    """The stems of a text's words, in order, without stop words."""
    words = (_POSSESSIVE.sub("", word).lower() for word in _WORD.findall(text))
    return [stem(word) for word in words if word and word not in STOP_WORDS]


def stored_length(length: int) -> int:
    """A document's length after it went through Lucene's one byte.

    >>> [stored_length(n) for n in (23, 40, 41, 100, 1000)]
    [23, 40, 40, 96, 984]
    """
    excess = length - _NUM_EXACT
    num_dropped = max(excess.bit_length() - 4, 0)
    return length if excess < 0 else _NUM_EXACT + (excess >> num_dropped << num_dropped)


class TextIndex:
    """An immutable index of documents; safe to share between threads and with forked processes."""

    def __init__(self, documents: Iterable[str]) -> None:
        occurrences: dict[str, list[tuple[int, int]]] = {}
        lengths = []
        for number, document in enumerate(documents):
            words = words_of(document)
            lengths.append(len(words))
            for word, count in Counter(words).items():
                occurrences.setdefault(word, []).append((number, count))
        self._num_docs = len(lengths)
        mean = sum(lengths) / len(lengths) if any(lengths) else 1.0
        norms = K1 * (1 - B + B * np.array([stored_length(length) for length in lengths]) / mean)
        self._postings = {word: self._weigh(found, norms) for word, found in occurrences.items()}
        self.search = lru_cache(maxsize=_MAX_QUERIES)(self._search)

    def _weigh(self, found: Sequence[tuple[int, int]], norms: Weights) -> tuple[Docs, Weights]:
        docs, counts = np.array(found, np.int32).T
        idf = log1p((self._num_docs - len(found) + 0.5) / (len(found) + 0.5))
        return docs, idf * counts / (counts + norms[docs])

    def _search(self, query: str, most: int) -> tuple[int, ...]:
        """The numbers of at most `most` documents that hold a word of the query, the best ones first."""
        scores = np.zeros(self._num_docs)
        for word in words_of(query):
            if word in self._postings:
                docs, weights = self._postings[word]
                scores[docs] += weights
        hits = np.flatnonzero(scores)
        best: list[int] = hits[np.argsort(-scores[hits], kind="stable")[:most]].tolist()
        return tuple(best)
