"""PATE on handwritten digits: 40 teachers of 30 images each label public images for a student.

    python examples/teachers.py

The data come with scikit-learn. The student asks in two rounds: first about some images, by GNMax, then
about those where the teachers differ from what it believes by now, by Interactive-GNMax. Both rounds
draw on one ledger, and are charged before their first question.
"""

from __future__ import annotations

import numpy as np
from sklearn.datasets import load_digits

from sourdine import Budget, Ledger
from sourdine.pate import (
    GNMax,
    InteractiveGNMax,
    Labelling,
    Student,
    fit_heads,
    fit_noise,
    fit_student,
    partitions,
)

CLASSES, TEACHERS, FIRST, SECOND = 10, 40, 60, 200


def main() -> Student:
    images, digits = load_digits(return_X_y=True)
    images = images / 60  # a public constant; a norm of about 1
    order = np.random.default_rng(0).permutation(len(images))
    private, public, test = order[:1200], order[1200:1500], order[1500:]

    parts = partitions(images[private], TEACHERS)  # by a hash of each image
    teachers = fit_heads(images[private], digits[private], parts, CLASSES, ridge=0.03)
    votes = teachers.vote(images[public])

    # Noise that just fits each round's share; threshold and shares were chosen without these votes.
    ledger = Ledger(None, Budget(8.0, 1e-4))
    gnmax = fit_noise(Budget(6.0, 1e-5), GNMax(5.0), FIRST, FIRST)
    first = Labelling(gnmax, ledger, questions=FIRST, answers=FIRST)
    labels = np.full(len(public), -1)
    labels[:FIRST] = first.ask(votes[:FIRST]).labels
    student = fit_student(images[public], labels, CLASSES)
    print(f"first round: {first.answered} answers, epsilon {ledger.spent().epsilon:.2f}")

    rest = np.arange(FIRST, FIRST + SECOND)
    asks = InteractiveGNMax(threshold=20, sigma_check=30.0, sigma=10.0, sure=0.5)
    asks = fit_noise(Budget(3.0, 1e-5), asks, SECOND, 20)
    second = Labelling(asks, ledger, questions=SECOND, answers=20)
    found = second.ask(votes[rest], student.beliefs(images[public[rest]]))
    labels[rest] = found.labels
    student = fit_student(images[public], labels, CLASSES)
    print(f"second round: {second.answered} corrected, {len(found.known) - second.answered} confirmed")
    print(f"both rounds: epsilon {ledger.spent().epsilon:.2f} at delta 1e-4 per image, for any votes")

    right = (student.predict(images[test]) == digits[test]).mean()
    print(f"the student is right on {right:.0%} of {len(test)} other images")
    return student


if __name__ == "__main__":
    main()
