"""Finds the admissible command that a policy meant, as AgentBench-FC does: the best sentence-level BLEU."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence

MIN_SCORE = 0.01
_MAX_ORDER = 4
_SMOOTHING = 5.0

Words = Sequence[str]


def resolve(text: str, commands: Sequence[str]) -> str:
    """The command to carry out for what a policy wrote.

    That is the first line of the lower-cased text if it is admissible; else the first of the commands with the best
    BLEU, if that is above MIN_SCORE; else the line as it is.
    """
    lines = text.strip().lower().split("\n", 1)
    line = lines[0].rstrip()
    if line in commands or not commands:
        return line
    scores = bleu_scores(commands, line.split())
    best = max(scores)
    return commands[scores.index(best)] if best > MIN_SCORE else line


def bleu_scores(references: Sequence[str], hypothesis: Words) -> list[float]:
    """The sentence BLEU of `hypothesis` against each reference alone.

    exp(Σₙ log(pₙ) / 4) · min(1, exp(1 − r/h)) over n-gram precisions p₁ … p₄, reference length r, hypothesis length
    h; 0 if no word matches. A precision of 0 is replaced by log(h) / (5 · 2ᵏ · Nₙ), k counting the replacements and
    Nₙ the n-grams (method 4 of Chen and Cherry 2014, as nltk computes it); a precision of a single word is left out
    of the sum.
    """
    counts = [Counter(_ngrams(hypothesis, order)) for order in range(1, _MAX_ORDER + 1)]
    return [_score(counts, len(hypothesis), reference.split()) for reference in references]


def _score(counts: Sequence[Counter[Words]], length: int, reference: Words) -> float:
    total, num_smoothed = 0.0, 0
    for order, count in enumerate(counts, 1):
        available = Counter(_ngrams(reference, order))
        num_matches = sum(min(count[ngram], number) for ngram, number in available.items())
        num_ngrams = max(1, length - order + 1)
        if num_matches:
            total += math.log(num_matches / num_ngrams)
        elif order == 1:
            return 0.0
        elif length > 1:
            num_smoothed += 1
            total += math.log(math.log(length) / (_SMOOTHING * 2**num_smoothed * num_ngrams))
    brevity = min(1.0, math.exp(1.0 - len(reference) / length))
    return brevity * math.exp(total / _MAX_ORDER)


def _ngrams(words: Words, order: int) -> Iterator[Words]:
    return (tuple(words[i : i + order]) for i in range(len(words) - order + 1))
