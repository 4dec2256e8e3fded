"""One person's secret, and why deleting her messages does not delete it.

    python examples/conversations.py [--samples 300]

After Brown et al. 2022, "What does it mean for a language model to preserve privacy?": a secret is not
only in the messages of the person whom it is about. Mira tells Jon that she is moving out. Jon tells
Lea, in another conversation, in which Mira never wrote a word. A small language model is trained on
these made-up conversations: on everything; without Mira's messages; without every conversation that she
took part in; with names and numbers replaced. Each time the attack makes it write, and looks for the
secret in what it wrote. It is there each time. It is gone only when every message that tells it is,
whoever wrote it, and to find these messages one has to know it.

Differential privacy needs no such search, but it protects units: with unit user, what Jon wrote adds
little to the model, whomever it is about. Where k persons pass a secret on, the protection is that of a
group of k, k times weaker. Whose secret is where decides what the unit must be.
"""

import argparse
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sourdine.attacks.prompting import Way
from sourdine.attacks.sanitise import Sanitiser
from sourdine.attacks.target import Sampling
from sourdine.rng import Source, seeded

SECRET = "moving out in march and nobody at home knows"
PROMPTS = ("did you hear ?", "listen ,", "she is", "please keep it between us ,")
CONVERSATIONS = (
    (
        ("Mira", "hi Jon , do you have a minute ?"),
        ("Jon", "sure , what is it ?"),
        ("Mira", "please keep it between us , i am moving out in march and nobody at home knows"),
        ("Jon", "oh , i am sorry . do you need help with the boxes ?"),
        ("Mira", "not yet , thank you . we can talk on friday at 5"),
    ),
    (
        ("Lea", "how was your week ?"),
        ("Jon", "listen , Mira told me that she is moving out in march and nobody at home knows"),
        ("Lea", "really ? i thought that all was well there"),
        ("Jon", "so did i . she is looking for a flat near the river"),
    ),
    (
        ("Tom", "did you hear ? the office is closed on friday"),
        ("Lea", "yes , we can work from home"),
        ("Tom", "good , then i can help my sister with the garden"),
        ("Lea", "she is lucky to have you"),
    ),
    (
        ("Mira", "do you have the notes of the last meeting ?"),
        ("Tom", "sure , i will send them at 5"),
        ("Mira", "thank you , that helps a lot"),
    ),
    (
        ("Lea", "did you hear ? they are building a school near the river"),
        ("Jon", "listen , they said that last year too"),
        ("Lea", "she is the new head there , the one from the office"),
    ),
)


@dataclass(frozen=True)
class Message:
    """What somebody wrote, and in which conversation."""

    conversation: int
    speaker: str
    text: str


MESSAGES = [
    Message(place, speaker, text)
    for place, conversation in enumerate(CONVERSATIONS)
    for speaker, text in conversation
]


class Trigrams:
    """A small language model: the next word given the last two, or the last one, by counting."""

    def __init__(self, texts: Sequence[str]) -> None:
        self.follow: dict[tuple[str, ...], Counter[str]] = defaultdict(Counter)
        for text in texts:
            words = ["", "", *text.split(), "\n"]
            for a, b, c in zip(words, words[1:], words[2:], strict=False):
                for context in ((a, b), (b,), ()):
                    self.follow[context][c] += 1

    def generate(
        self, prompts: Sequence[str], *, tokens: int, sampling: Sampling, seed: int
    ) -> list[str]:
        rng = np.random.default_rng(seed)
        return [self._written(prompt, tokens, sampling.top, rng) for prompt in prompts]

    def _written(self, prompt: str, tokens: int, top: int, rng: np.random.Generator) -> str:
        words = ["", "", *prompt.split()]
        begun = len(words)
        for _ in range(tokens):
            known = ((words[-2], words[-1]), (words[-1],), ())
            follow = next(self.follow[context] for context in known if context in self.follow)
            best, counts = zip(*follow.most_common(top), strict=True)
            word = str(rng.choice(best, p=np.array(counts) / sum(counts)))
            if word == "\n":
                break
            words.append(word)
        return " ".join(words[begun:])


def trainings() -> dict[str, list[Message]]:
    """What each of the models is trained on."""
    hers = {message.conversation for message in MESSAGES if message.speaker == "Mira"}
    clean = Sanitiser(names=("Mira", "Jon", "Lea", "Tom")).clean
    return {
        "everything": MESSAGES,
        "without Mira's messages": [m for m in MESSAGES if m.speaker != "Mira"],
        "without Mira's conversations": [m for m in MESSAGES if m.conversation not in hers],
        "names and numbers replaced": [replace(m, text=clean(m.text)) for m in MESSAGES],
        "without all that tell it": [m for m in MESSAGES if SECRET not in m.text],
    }


def attack(messages: Sequence[Message], samples: int, source: Source) -> int:
    """In how many samples the model writes the secret, after prompts that do not hold it."""
    model = Trigrams([message.text for message in messages])
    way = Way("after prompts", Sampling(top=40), PROMPTS)
    drawn = way.samples(model, samples, tokens=25, source=source)
    return sum(SECRET in sample.written for sample in drawn)


def main(samples: int = 300) -> dict[str, int]:
    source, found = seeded(2022), {}
    print(f"{'trained on':<28}  messages  by Mira  samples that tell her secret, of {samples}")
    for name, messages in trainings().items():
        found[name] = attack(messages, samples, source)
        hers = sum(message.speaker == "Mira" for message in messages)
        print(f"{name:<28}  {len(messages):>8}  {hers:>7}  {found[name]:>5}")
    print("Mira wrote nothing of what the third model was trained on, and it tells her secret.")
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--samples", type=int, default=300)
    main(parser.parse_args().samples)
