"""The experiments, one file per question. The registry decides their order and their names."""

from __future__ import annotations

from outlive.lab.experiment import Experiment
from outlive.lab.experiments import (
    behind_nginx,
    cleanup,
    cut_effect,
    cut_writes,
    durability,
    effects,
    frozen,
    kill,
    late_write,
    leaves,
    modes,
    pauses,
    proxy,
    schedules,
    servers,
    shapes,
    threads,
    trace,
    two_messages,
    undeclared,
    webhooks,
    with_outlive,
)

ALL: tuple[Experiment, ...] = (
    shapes.EXPERIMENT,
    durability.EXPERIMENT,
    two_messages.EXPERIMENT,
    modes.EXPERIMENT,
    cut_writes.EXPERIMENT,
    late_write.EXPERIMENT,
    cut_effect.EXPERIMENT,
    undeclared.EXPERIMENT,
    kill.EXPERIMENT,
    pauses.EXPERIMENT,
    cleanup.EXPERIMENT,
    proxy.EXPERIMENT,
    with_outlive.EXPERIMENT,
    effects.EXPERIMENT,
    webhooks.EXPERIMENT,
    schedules.EXPERIMENT,
    trace.EXPERIMENT,
    threads.EXPERIMENT,
    leaves.EXPERIMENT,
    frozen.EXPERIMENT,
    servers.EXPERIMENT,
    behind_nginx.EXPERIMENT,
)
