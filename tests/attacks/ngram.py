"""A target for the tests: a language model that counts signs, and so memorises what it meets often."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Sequence

import numpy as np

from sourdine.attacks.target import Sampling, TokenLogs

START, END = "\x02", "\n"
SIGNS = END + " abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,:;@!?'-_()[]{}=+/"
TEXT = (
    "the a nurse doctor patient house garden river letter morning evening walked wrote saw found "
    "quiet old small long before after with from into under near again never often slowly and but"
)


class Ngram:
    """Signs given the last `order` ones, all orders interpolated (Witten and Bell 1991)."""

    def __init__(self, texts: Sequence[str], order: int = 8) -> None:
        self.order = order
        self.counts: dict[str, Counter[str]] = defaultdict(Counter)
        for text in texts:
            padded = START * order + text + END
            for place in range(order, len(padded)):
                for size in range(order + 1):
                    self.counts[padded[place - size : place]][padded[place]] += 1
        self.known: dict[str, np.ndarray] = {}
        self.place = {sign: at for at, sign in enumerate(SIGNS)}

    def next(self, context: str) -> np.ndarray:
        if context not in self.known:
            below = self.next(context[1:]) if context else np.full(len(SIGNS), 1 / len(SIGNS))
            met = self.counts.get(context)
            if met is not None:
                row = np.zeros(len(SIGNS))
                for sign, count in met.items():
                    row[self.place[sign]] = count
                below = (row + len(met) * below) / (sum(met.values()) + len(met))
            self.known[context] = below
        return self.known[context]

    def token_logs(self, texts: Sequence[str]) -> list[TokenLogs]:
        found = []
        for text in texts:
            padded = START * self.order + text
            rows = [
                self.next(padded[at - self.order : at])[self.place[padded[at]]]
                for at in range(self.order, len(padded))
            ]
            none = np.zeros(len(rows))
            found.append(TokenLogs(np.log(np.array(rows)), none, none, none.astype(np.int64)))
        return found

    def generate(
        self, prompts: Sequence[str], *, tokens: int, sampling: Sampling, seed: int
    ) -> list[str]:
        rng = np.random.default_rng(seed)
        return [self._written(prompt, tokens, sampling, rng) for prompt in prompts]

    def _written(self, prompt: str, tokens: int, sampling: Sampling, rng: np.random.Generator) -> str:
        text = START * self.order + prompt
        for step in range(tokens):
            fall = min(1.0, step / sampling.decay) if sampling.decay else 0.0
            heat = sampling.temperature + fall * (1 - sampling.temperature)
            row = self.next(text[-self.order :])
            best = np.argsort(-row, kind="stable")[: sampling.top]
            share = row[best] ** (1 / heat)
            sign = SIGNS[rng.choice(best, p=share / share.sum())]
            if sign == END:
                break
            text += sign
        return text[self.order + len(prompt) :]


def sentences(count: int, seed: int = 0) -> list[str]:
    """Made text in which no stretch of 50 signs is likely to stand twice."""
    rng, words = random.Random(seed), TEXT.split()
    return [" ".join(rng.choice(words) for _ in range(rng.randint(12, 20))) for _ in range(count)]
