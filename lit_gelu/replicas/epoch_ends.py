"""Where Lightning's loop takes the end of an epoch for what it is not, when a group is resumed."""

from typing import Any

from lightning.pytorch import Trainer


def leave_epoch_unfinished(fit_loop: dict[str, Any]) -> None:
    """Change a loop's saved state, if it is from the hooks after an epoch's last batch: only that batch is over."""
    # Lightning would take the epoch as over. Now it takes the batch as over, and the validation as begun, with no batch
    # done.
    epoch, batch = fit_loop["epoch_progress"]["current"], fit_loop["epoch_loop.batch_progress"]
    after_batch = batch["current"]["ready"] == batch["current"]["processed"] == batch["current"]["completed"] + 1
    if not (batch["is_last_batch"] and after_batch and epoch["started"] == epoch["processed"] + 1):
        return
    for count in ("total", "current"):
        batch[count]["completed"] += 1
        validation = fit_loop["epoch_loop.val_loop.batch_progress"][count]
        validation.update({"ready": 1, "started": 1, "processed": 0, "completed": 0})


def go_on_behind_a_batch(trainer: Trainer, *, is_counted: bool = False) -> None:
    """Let a run that was left in the hooks after a batch validate, if that is due, and count that batch's step once."""
    # Lightning would leave out a validation within the epoch. Behind an epoch's last batch, `leave_epoch_unfinished`
    # has Lightning take the batch as over, and then nothing counts its step for the loggers.
    fit_loop, loop = trainer.fit_loop, trainer.fit_loop.epoch_loop
    fetcher = fit_loop._data_fetcher
    if fetcher is None or not loop.restarting or fit_loop.restarted_on_epoch_start:
        return
    if not fit_loop.restarted_mid_epoch:
        if loop.batch_progress.is_last_batch:
            leave_epoch_behind(fit_loop)
        return
    is_due = loop.batch_idx >= 0 and loop._should_check_val_fx(fetcher)  # a group may count no batch of this epoch yet
    if is_due and loop.restarted_on_train_batch_end:
        loop.batch_progress.increment_completed()
        progress: Any = loop.val_loop.batch_progress
        for counts in (progress.total, progress.current):
            counts.ready = counts.started = 1  # begun, and no batch done
            counts.processed = counts.completed = 0
        loop.update_restart_stage()
    elif is_due and is_counted:
        loop._batches_that_stepped -= 1  # Lightning counts the step behind a validation
    elif not is_due and loop.restarted_on_last and loop.batch_progress.is_last_batch:
        loop._batches_that_stepped += 1


def leave_epoch_behind(fit_loop: Any) -> None:
    """Let a run that was left in the hooks at an epoch's end, or behind them, begin the next epoch."""
    # Lightning does so with max_epochs. With max_steps it would take one more batch in that epoch, or none, and call
    # the hooks of its end once more.
    if fit_loop.restarted_on_epoch_end:
        fit_loop.epoch_progress.increment_completed()
    fit_loop.epoch_loop.restarting = False
    for loop in (fit_loop.epoch_loop, fit_loop):
        loop.on_iteration_done()  # nothing is left of the resume


def leave_epoch_finished(fit_loop: dict[str, Any]) -> None:
    """Change a loop's saved state, if it is from the hooks at an epoch's end: the epoch is over then."""
    # With max_steps and no validation, Lightning would take another batch in that epoch.
    epoch, batch = fit_loop["epoch_progress"], fit_loop["epoch_loop.batch_progress"]
    current = batch["current"]
    if epoch["current"]["started"] == epoch["current"]["processed"] == epoch["current"]["completed"] + 1:
        for count in ("total", "current"):
            epoch[count]["completed"] += 1
        current.update(dict.fromkeys(current, 0))
        batch["is_last_batch"] = False
