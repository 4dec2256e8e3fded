"""A causal language model of transformers as a target: what it thinks of tokens, and what it writes.

Padding never changes an answer: a causal model does not look at what stands right of a token, and
prompts of one length are continued together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sourdine.attacks.target import Sampling, TokenLogs
from sourdine.errors import InputError

_TOKENS = 2048
"""Tokens that are judged at one time: each has a probability for the whole vocabulary."""
_PIECE = 256
"""Tokens whose probabilities are held at once in double precision."""
_BATCH = 32
_NO_TOKEN = TokenLogs(np.empty(0), np.empty(0), np.empty(0), np.empty(0, dtype=np.int64))


@dataclass(frozen=True, eq=False)
class CausalModel:
    """A causal language model of transformers with its tokenizer.

    A text is judged as the tokenizer writes it; its first token has nothing before it and is not
    judged. Texts are cut at the longest that the model reads.
    """

    model: Any
    tokenizer: Any
    longest: int

    def token_logs(self, texts: Sequence[str]) -> list[TokenLogs]:
        """What the model thought of each token of each text."""
        import torch  # noqa: PLC0415

        rows = self._ids(texts, self.longest)
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        found = [_NO_TOKEN] * len(rows)
        with torch.inference_mode():
            for at in _batches(order, [len(row) for row in rows]):
                widest = len(rows[at[-1]])
                ids = torch.zeros(len(at), widest, dtype=torch.long)
                mask = torch.zeros_like(ids)
                for line, place in enumerate(at):
                    ids[line, : len(rows[place])] = torch.tensor(rows[place])
                    mask[line, : len(rows[place])] = 1
                device = self.model.device
                logits = self.model(ids.to(device), attention_mask=mask.to(device)).logits
                for line, place in enumerate(at):
                    size = len(rows[place])
                    found[place] = _judged(logits[line, : size - 1], ids[line, 1:size].to(device))
        return found

    def generate(
        self, prompts: Sequence[str], *, tokens: int, sampling: Sampling, seed: int
    ) -> list[str]:
        """For each prompt what follows it, begun as the tokenizer begins a text.

        "" starts from the token that starts or parts texts.
        """
        import torch  # noqa: PLC0415

        rows = [self._begun(prompt) for prompt in prompts]
        if not all(rows):
            raise InputError("this model has no token to start from; give prompts of some text.")
        tokens = min(tokens, self.longest - 1)
        rows = [row[tokens - self.longest :] for row in rows]  # what leaves room for them
        rng = torch.Generator(self.model.device).manual_seed(seed)
        found = [""] * len(rows)
        # Prompts of one length together, so that none is padded.
        order = sorted(range(len(rows)), key=lambda place: len(rows[place]))
        with torch.inference_mode():
            for at in _equal(order, [len(row) for row in rows]):
                ids = torch.tensor([rows[place] for place in at], device=self.model.device)
                written = _written(self.model, ids, tokens, sampling, rng, self.tokenizer.eos_token_id)
                for place, line in zip(at, written, strict=True):
                    found[place] = self.tokenizer.decode(line, skip_special_tokens=True)
        return found

    def _begun(self, prompt: str) -> list[int]:
        """The prompt with what the tokenizer puts before a text, and without what it puts behind it.

        A token more or less before it would move every place by one: small models notice.
        """
        bare = list(self.tokenizer(prompt, add_special_tokens=False)["input_ids"])
        if bare:
            whole = list(self.tokenizer(prompt)["input_ids"])
            ends = (
                place + len(bare) for place in range(len(whole)) if whole[place:][: len(bare)] == bare
            )
            return whole[: next(ends, 0)] or bare
        names = ("bos_token_id", "cls_token_id", "eos_token_id")
        known = (getattr(self.tokenizer, name) for name in names)
        return [int(token) for token in known if token is not None][:1]

    def _ids(self, texts: Sequence[str], longest: int) -> list[list[int]]:
        if not texts:
            return []
        rows = self.tokenizer(list(texts), truncation=True, max_length=longest)["input_ids"]
        return [list(row) for row in rows]


def _judged(logits: Any, truth: Any) -> TokenLogs:
    """Log probability, its mean and deviation over the vocabulary, and rank, at each place."""
    if not len(truth):
        return _NO_TOKEN
    pieces = [_piece(*both) for both in zip(logits.split(_PIECE), truth.split(_PIECE), strict=True)]
    return TokenLogs(*(np.concatenate(parts) for parts in zip(*pieces, strict=True)))


def _piece(logits: Any, truth: Any) -> tuple[Any, ...]:
    logs = logits.double().log_softmax(1)
    chances = logs.exp()
    logs = logs.clamp(min=-1e30)  # 0 log 0 is 0: some models rule tokens out
    mean = (chances * logs).sum(1)
    deviation = (chances * (logs - mean[:, None]) ** 2).sum(1).sqrt()
    true = logs.gather(1, truth[:, None])
    parts = (true[:, 0], mean, deviation, (logs > true).sum(1))
    return tuple(part.cpu().numpy() for part in parts)


def _written(
    model: Any, ids: Any, tokens: int, sampling: Sampling, rng: Any, end: int | None
) -> list[list[int]]:
    """New tokens of each row, up to its end token."""
    import torch  # noqa: PLC0415

    lines: list[list[int]] = [[] for _ in range(len(ids))]
    open_ = [True] * len(ids)
    past: Any = None
    for step in range(tokens):
        answer = model(ids, past_key_values=past, use_cache=True)
        past = answer.past_key_values
        logits = answer.logits[:, -1].double() / _temperature(sampling, step)
        best, names = logits.topk(min(sampling.top, logits.shape[1]), dim=1)
        drawn = torch.multinomial(best.softmax(1), 1, generator=rng)
        ids = names.gather(1, drawn)
        for row, token in enumerate(ids[:, 0].tolist()):
            open_[row] = open_[row] and token != end
            if open_[row]:
                lines[row].append(token)
        if not any(open_):
            break
    return lines


def _temperature(sampling: Sampling, step: int) -> float:
    if not sampling.decay:
        return sampling.temperature
    return 1 + (sampling.temperature - 1) * max(0.0, 1 - step / sampling.decay)


def _batches(order: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Rows of rising size in batches of about _TOKENS tokens; rows without a second token are left."""
    batch: list[int] = []
    for place in order:
        if sizes[place] < 2:
            continue
        if batch and sizes[place] * (len(batch) + 1) > _TOKENS:
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch


def _equal(order: Sequence[int], sizes: Sequence[int]) -> Iterator[list[int]]:
    """Rows of one size together, at most _BATCH of them."""
    batch: list[int] = []
    for place in order:
        if batch and (sizes[place] != sizes[batch[0]] or len(batch) == _BATCH):
            yield batch
            batch = []
        batch.append(place)
    if batch:
        yield batch
