"""Stopping a run and going on with it: what an Engine does with its folder.

Guarantee: a step is run again with the same lot, noise and dropout, and then only if data, settings and
code agree, the optimizer keeps its pace, and the sums that the noise is added to are the same to the
bit; it shows nothing new and costs nothing more. In any other case fresh keys are taken, and every step
that may have been run is charged again before going on.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from sourdine import rng
from sourdine.errors import InputError, SourdineError
from sourdine.ledger import Ledger
from sourdine.sgd.agreement import digest, pace
from sourdine.sgd.canaries import Canaries
from sourdine.sgd.charge import Charge
from sourdine.sgd.clipping import Adaptive, Clip
from sourdine.sgd.correlated import CorrelatedNoise
from sourdine.sgd.folder import Folder
from sourdine.sgd.processes import Processes
from sourdine.sgd.sampling import Lots
from sourdine.sgd.sums import fingerprint


class Resuming:
    """The half of an Engine that saves, loads and changes keys; what it works on is the Engine's."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip: Clip
    plan: Lots
    charge: Charge
    steps: int
    done: int
    batch_size: int
    canaries: Canaries | None
    _processes: Processes
    _folder: Folder | None
    _streams: rng.Streams
    _source: rng.Source | None
    _correlated: CorrelatedNoise | None
    _save_every: int
    _facts: bytes
    _agreement: list[str]
    _groups: str
    _reached: int
    _off_pace: bool
    _over: bool

    @property
    def ledger(self) -> Ledger:
        """What the run is charged to."""
        return self.charge.ledger

    def _keep(self) -> None:
        """Saves before the next lot is drawn; no lot is drawn past the next save."""
        folder = self._folder
        if folder is None:
            return
        if self._off_pace:
            self._renew(folder)
        else:
            self._processes.once(lambda: folder.save(*self._state()))

    def _next_save(self, step: int) -> int:
        return min(self.steps, (step // self._save_every + 1) * self._save_every)

    def _state(self) -> tuple[dict[str, Any], Any]:
        """The checkpoint, and what of it must stay secret."""
        state = {
            "step": self.done,
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "kind": type(self.optimizer).__qualname__,
            "groups": self._groups,
            "clip": self.clip.bound,
            "reservation": self.charge.reservation,
            "noise_multiplier": self.charge.noise_multiplier,
            "reached": max(self._reached, self._next_save(self.done)),
            "agreement": self._agreement,
            "canaries": None if self.canaries is None else self.canaries.state(),
        }
        return state, None if self._correlated is None else self._correlated.state_dict()

    def _go_on(self, folder: Folder) -> None:
        """Takes up the run that is found in the folder, or starts one."""
        try:
            self._processes.once(folder.take)
            self._folder, self._groups = folder, pace(self.optimizer).hex()
            if self.charge.reservation is None or "model" not in folder.state:
                self._start(folder)
            else:
                self._take_up(folder)
        except BaseException:
            folder.close()
            raise

    def _start(self, folder: Folder) -> None:
        if folder.state["reservation"] is not None:
            raise InputError(
                f"the ledger {self.ledger.name} does not know the run in {folder.path}; go on with the "
                "ledger that it was charged to, or name another folder."
            )
        if self.charge.reservation is not None and "model" not in folder.state and folder.begun:
            raise folder.gone()
        self._change_keys(folder, self._streams)  # nothing was drawn so far

    def _take_up(self, folder: Folder) -> None:
        state = folder.state
        if self.charge.reserved != self.charge.event().to_json():
            raise InputError(
                f"the folder {folder.path} holds a run with another plan; go on with its settings, or "
                "name another folder."
            )
        self._load(folder)
        if self.charge.settled:
            if self.done < self.steps:
                raise InputError(
                    f"the run in {folder.path} was ended after {self.done} of {self.steps} steps; name "
                    "another folder for a new one."
                )
            folder.destroy_keys()
            folder.close()
            self._folder = None
            return
        reached = state.get("reached")
        if reached is None:  # saved by an earlier version
            reached = (self.done // state["save_every"] + 1) * state["save_every"]
        noted = self._processes.once(folder.noted)
        self._reached = min(self.steps, max(reached, noted, self.done))
        saved = folder.streams()
        noise = folder.secret() if self._correlated is not None and self.done else {}
        known = saved is not None and noise is not None
        found = self._processes.hear(self._sealed(saved) if saved and known else "")
        if saved is None or found != state["agreement"]:
            self._renew(folder)
            return
        self._streams, self._agreement = saved, found
        if self._correlated is not None and self.done:
            self._correlated.load_state_dict(noise)

    def _load(self, folder: Folder) -> None:
        state, own = folder.state, [dict(group) for group in self.optimizer.param_groups]
        try:
            if state["kind"] != type(self.optimizer).__qualname__:
                raise ValueError(f"its optimizer is {state['kind']}")
            self.model.load_state_dict(state["model"])
            self.optimizer.load_state_dict(state["optimizer"])
        except (RuntimeError, ValueError) as error:
            raise InputError(
                f"the folder {folder.path} holds another run: {str(error).splitlines()[0][:120]}; go "
                "on with its model and optimizer, or name another folder."
            ) from None
        if state["groups"] != self._groups:  # new settings hold
            for group, before in zip(self.optimizer.param_groups, own, strict=True):
                group.update((name, x) for name, x in before.items() if name != "params")
        self.done = state["step"]
        if self.canaries is not None:
            self.canaries.load(state["canaries"])
        if isinstance(self.clip, Adaptive):
            self.clip.clip = state["clip"]

    def _renew(self, folder: Folder) -> None:
        """Goes on with fresh keys; steps that may have been run before are charged once more."""
        if self.done and (self.plan.stream(1) != 1 or self._correlated is not None):
            raise InputError(
                "the steps of this run hang together (shuffled lots or correlated noise), and its keys "
                "are gone or the data, settings or code have changed; start a new folder."
            )
        fresh = self._processes.streams(self._source)
        if fresh.kind != self.charge.kind:
            raise InputError(
                f"this run was charged with a {self.charge.kind} source, not a {fresh.kind} one; go on "
                "with a source of its kind."
            )
        self.charge.again(self._reached - self.done, folder.run)
        before, self._reached, self._off_pace = (self._reached, self._off_pace), self.done, False
        try:
            self._change_keys(folder, fresh)
        except BaseException:  # the old key may still be there: its steps were run
            self._reached, self._off_pace = before
            raise

    def _change_keys(self, folder: Folder, streams: rng.Streams) -> None:
        folder.keep(streams)
        self._streams = streams
        self._agreement = self._processes.hear(self._sealed(streams))

        def save() -> None:
            folder.forget(self.done)
            folder.save(*self._state())

        self._processes.once(save)

    def _sealed(self, streams: rng.Streams) -> str:
        """The agreement under a key: bare, it would tell whoever guesses the data that it is right."""
        key = streams.at("agreement").bytes(32)
        return hashlib.blake2b(self._facts, key=key).hexdigest()

    def _note(self, step: int, sums: Sequence[Tensor]) -> None:
        """Before the noise of a step is drawn: a step that is run again must have the same sums.

        Otherwise it would meet its noise a second time, and the difference would be bare. One that
        moves the weights otherwise than before leads to other sums in the next.
        """
        folder = self._folder
        if folder is None:
            return

        def noted() -> tuple[bool, bool]:
            return folder.note(step, fingerprint(sums), digest(pace(self.optimizer)), self.batch_size)

        if step >= self._reached:
            if self._processes.first:
                folder.forget(step)  # of a try that ended before its noise was drawn
                noted()
            return
        alike, on_pace = self._processes.once(noted)
        if not alike:
            folder.destroy_key()
            folder.close()
            self._folder, self._over = None, True
            raise SourdineError(
                "this step has other sums than before: it was made in other batches or graphs, or "
                "something has changed unseen. They must not meet the same noise. Start the same "
                "command again: it takes fresh keys, and is charged for the steps since its last save "
                "once more; where the budget has no room for that, what was reserved stays charged."
            )
        self._off_pace |= not on_pace
        self._off_pace &= step + 1 < self._reached  # the last one: nothing follows from it

    def _cut_as_before(self, step: int) -> None:
        """Batches of another size, after memory ran out, give sums that differ in their last bits."""
        folder = self._folder
        if folder is not None and step < self._reached:
            self.batch_size = self._processes.once(lambda: folder.batch_size(step)) or self.batch_size
