"""What torch's compiler makes of graphs, in one process of its own.

It imports and changes much, once and for all, and takes a while.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from functools import partial
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

import sourdine  # noqa: E402

CLIP = 1e-3
WAYS = ("logits", "changed", "nothing")  # of test_softmax.MORE: those that end in different programs


def sums_and_clip() -> None:
    """Whatever else is compiled, a batch has the same sum, and no example adds more than the clip."""
    from test_graphs import TOLERANCE, Made, data, loss, net

    from sourdine.sgd.graphs import compiled

    how = Made(net(dropout=0.5), loss, CLIP, compiled)
    for start in range(3):
        found = how.sums(data(start))
        assert float((found - how.wanted(data(start))).norm() / found.norm()) <= TOLERANCE
    for one in torch.eye(4):
        assert float(how.sums(data(), one).double().norm()) <= CLIP
    assert all(how.made), how.graphs.reasons


def logits(way: str) -> None:
    """torch's own (2.13) makes more of logits where it is read, of what is no longer there."""
    from test_softmax import of_more

    of_more(way, partial(torch.compile, dynamic=False))


PARTS = {"sums and clip": sums_and_clip, **{way: partial(logits, way) for way in WAYS}}


def main() -> None:
    """Prints what each part raised, as JSON."""
    raised = dict.fromkeys(PARTS, "")
    for name, part in PARTS.items():
        try:
            part()
        except Exception:
            raised[name] = traceback.format_exc()
    print(json.dumps(raised))


@pytest.fixture(scope="module")
def raised() -> dict[str, str]:
    own = [Path(__file__).parent, Path(sourdine.__file__).parents[1]]
    done = subprocess.run(
        [sys.executable, __file__],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, own))},
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    found: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("part", PARTS)
def test_it_keeps_what_it_is_given(part: str, raised: dict[str, str]) -> None:
    assert not raised[part], raised[part]


if __name__ == "__main__":
    main()
