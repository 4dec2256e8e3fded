"""Making a language model write: ways to draw text from it, and asking it for a planted secret.

After Carlini et al. 2021, section 5.1: text from nothing by the likeliest tokens; text whose first
tokens are drawn at a high temperature that falls, so that samples begin in many ways; and text that
follows given prompts, such as beginnings of public pages.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from sourdine import checks
from sourdine.attacks.secrets import Canary
from sourdine.attacks.target import Generates, Sampling
from sourdine.errors import InputError
from sourdine.rng import Source, secure

TOP = Sampling(top=40)
FALLING = Sampling(top=40, temperature=10.0, decay=20)
GREEDY = Sampling(top=1)
_SEEDS = 2**31


@dataclass(frozen=True, repr=False)
class Sample:
    """A prompt and what the target wrote after it. It may be private text: it is never printed."""

    prompt: str
    written: str

    @property
    def text(self) -> str:
        """Both as one text, which is what the target is asked to rate."""
        return self.prompt + self.written


@dataclass(frozen=True)
class Way:
    """A way to draw text: how tokens are chosen, and after which prompts, taken in turn."""

    name: str
    sampling: Sampling
    prompts: tuple[str, ...] = ("",)

    def __post_init__(self) -> None:
        if not self.prompts:
            raise InputError(f"the way {self.name!r} has no prompt; the empty text is one.")

    def samples(
        self, target: Generates, count: int, tokens: int, source: Source | None = None
    ) -> list[Sample]:
        """So many samples of so many tokens each, or fewer where the target ends before."""
        prompts = [self.prompts[place % len(self.prompts)] for place in range(count)]
        seed = (source or secure()).below(_SEEDS)
        written = target.generate(prompts, tokens=tokens, sampling=self.sampling, seed=seed)
        if len(written) != count:
            raise InputError(f"the target wrote {len(written)} texts where {count} were asked for.")
        return [Sample(*pair) for pair in zip(prompts, written, strict=True)]


def ways(prompts: Sequence[str] = ()) -> tuple[Way, ...]:
    """The three ways of the paper; the third only where there are prompts."""
    given = (Way("after prompts", TOP, tuple(prompts)),) if prompts else ()
    return (Way("likeliest tokens", TOP), Way("falling temperature", FALLING), *given)


def given_up(
    target: Generates, canaries: Sequence[Canary], *, tries: int = 20, source: Source | None = None
) -> list[int]:
    """In how many of `tries` answers to its prompt the target gives up each secret, whole and at once.

    The first answer is greedy, the others are drawn. Each answer counts as one guess: it must begin
    with what follows the prompt, but for space.

    Guarantee: a target that never met a secret drawn uniformly from |R| candidates gives it up in one
    or more of its answers with probability at most tries / |R|, by the union bound.
    """
    tries = checks.whole("tries", tries)
    source = source or secure()
    found = []
    for canary in canaries:
        # No token is shorter than a sign; some more for space.
        tokens, prompts = len(canary.ending) + 4, (canary.format.prompt,)
        answers = Way("greedy", GREEDY, prompts).samples(target, 1, tokens, source)
        if tries > 1:
            answers += Way("drawn", TOP, prompts).samples(target, tries - 1, tokens, source)
        ending = _level(canary.ending)
        found.append(sum(_level(answer.written).startswith(ending) for answer in answers))
    return found


def _level(text: str) -> str:
    return " ".join(text.split())
