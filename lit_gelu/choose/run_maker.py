"""Making the runs of a comparison that are not kept yet, in groups or one after another."""

from collections.abc import Callable, Sequence

from lit_gelu.choose.candidates import ActivationCandidate
from lit_gelu.choose.measuring import TrainedModules
from lit_gelu.choose.one_by_one import said, take_test, train_alone
from lit_gelu.choose.run_files import TrainedRun
from lit_gelu.choose.together import MOST, train_together, why_not_together

Cell = tuple[ActivationCandidate, int]


class RunMaker:
    """Makes the runs that are not there yet.

    Args:
        modules: What the runs have in common, and the folder in which they are kept.
        say: Called with a line whenever something is finished.
    """

    def __init__(self, modules: TrainedModules, say: Callable[[str], None]) -> None:
        self.modules, self.say = modules, say
        self.setup, self.folder = modules.setup, modules.folder
        self.how = "Nothing was trained: all runs were there."

    def make(self, wanted: Sequence[Cell], together: bool) -> dict[tuple[str, int], TrainedRun]:
        """Return all runs by label and seed."""
        found = {(c.label, seed): self.folder.find(c.label, c.spec, seed) for c, seed in wanted}
        done = {key: run for key, run in found.items() if run is not None and self._is_measured(run)}
        missing = [(c, seed) for c, seed in wanted if (c.label, seed) not in done]
        if missing:
            done |= self._made(missing, together)
        return done

    def _is_measured(self, run: TrainedRun) -> bool:
        """Test a kept run if a test is wanted that it has not; return whether its weights could be read."""
        if not self.setup.tests or (run.test and run.tested_on == self.setup.tested_on):
            return True
        try:
            module = self.modules.of(run)
        except Exception:  # noqa: BLE001 - its checkpoint is damaged: the run is made again
            return False
        try:
            take_test(self.setup, run, module)
        except Exception as error:  # noqa: BLE001 - of a user's module; the others are to be compared all the same
            run.failure = said(error)
        else:
            self.folder.keep(run)
        self.say(f"{run.label}, seed {run.seed}: {run.failure or 'tested'}")
        return True

    def _made(self, missing: Sequence[Cell], together: bool) -> dict[tuple[str, int], TrainedRun]:
        reason = why_not_together(self.setup) if together else "together=False was given"
        done: dict[tuple[str, int], TrainedRun] = {}
        for first in range(0, len(missing), MOST):
            part = missing[first : first + MOST]
            made, reason = self._part(part, reason)
            done |= {(run.label, run.seed): run for run in made}
        self.how = "Trained one after another" if reason else "Trained side by side, as a group"
        self.how += f": {reason}." if reason else "."
        return done

    def _part(self, wanted: Sequence[Cell], reason: str) -> tuple[list[TrainedRun], str]:
        """Return runs of a group, or where there can be none, single ones and why."""
        if not reason:
            try:
                runs = train_together(self.setup, wanted, self.folder)
            except Exception as error:  # noqa: BLE001 - whatever a group cannot do, single runs may
                reason = f"as a group they cannot be trained ({said(error).rstrip('.')})"
                self.say(f"one after another: {reason}")
            else:
                self.say(f"trained {len(runs)} runs side by side in {sum(run.seconds for run in runs):.1f} s")
                return runs, ""
        return [self._alone(candidate, seed) for candidate, seed in wanted], reason

    def _alone(self, candidate: ActivationCandidate, seed: int) -> TrainedRun:
        run = train_alone(self.setup, candidate, seed, self.folder.checkpoint(candidate.label, candidate.spec, seed))
        self.say(f"{candidate.label}, seed {seed}: {run.failure or f'trained in {run.seconds:.1f} s'}")
        if not run.failure:
            self.folder.keep(run)
        return run
