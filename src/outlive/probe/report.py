"""A whole probe: play the scenarios, judge them, and hold what is to be shown.

It decides the order (undisturbed first, since everything is compared with it) and the exit code.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from outlive.probe import evidence, findings, hints, nginx, target, verdicts
from outlive.probe import platform as platforms
from outlive.probe.findings import Finding
from outlive.probe.plan import Behaviour, Failure, Leaving, Outcome, Plan, PlanError, Scenario, Server
from outlive.probe.scenario import Stage, Trace
from outlive.probe.target import Running, Started

#: Exit codes: as asked, not what `--expect` says, one of `--fail-on`, a plan that cannot be carried out.
AS_ASKED, UNEXPECTED, FAILED, IMPOSSIBLE = 0, 1, 2, 3

#: Played when nobody says which: undisturbed, leaving, and coming back.
DEFAULT = ("stay", "leave", "return")

LEAVE = Scenario(name="leave", behaviour=Behaviour.LEAVE)


@dataclass(frozen=True, kw_only=True)
class Report:
    """What a probe found. `unusable` says why the rest means nothing; `notes` are hints about the plan."""

    target: str
    server: str
    versions: Mapping[str, str]
    asgi: Mapping[str, str]
    findings: tuple[Finding, ...]
    skipped: Mapping[str, str] = field(default_factory=dict)
    platform: Mapping[str, object] = field(default_factory=dict)
    behind_nginx: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    unusable: str | None = None
    seconds: float = 0.0

    @property
    def outcome(self) -> Outcome | None:
        """What the run does when its client leaves: of the first scenario in which one leaves and lives."""
        told = [f.outcome for f in self.findings if f.outcome and f.trace.exited is None]
        return told[0] if told else None

    @property
    def failures(self) -> tuple[Failure, ...]:
        """All that went wrong in any scenario, each once."""
        return tuple(dict.fromkeys(failure for finding in self.findings for failure in finding.failures))

    def exit_code(self, plan: Plan) -> int:
        """What to tell a shell."""
        if self.unusable is not None:
            return IMPOSSIBLE
        if plan.expect is not None and self.outcome is not plan.expect:
            return UNEXPECTED
        return FAILED if set(plan.fail_on) & set(self.failures) else AS_ASKED

    def as_json(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {
            "target": self.target,
            "server": self.server,
            "versions": dict(self.versions),
            "asgi": dict(self.asgi),
            "outcome": self.outcome.value if self.outcome else None,
            "failures": [failure.value for failure in self.failures],
            "unusable": self.unusable,
            "notes": list(self.notes),
            "scenarios": [_finding_as_json(finding) for finding in self.findings],
            "skipped": dict(self.skipped),
            "platform": dict(self.platform),
            "behind_nginx": dict(self.behind_nginx),
            "seconds": round(self.seconds, 1),
        }


def run(plan: Plan, progress: Callable[[str], None] = lambda _: None) -> Report:
    """Carry the plan out; single scenarios that are impossible are skipped.

    Raises `PlanError` when nothing can be carried out. `progress` is called with what begins.
    """
    began = time.monotonic()
    for source in plan.evidence:
        evidence.build(source)  # what is wrong with the plan is told before anything is started
    with target.opened(plan.target) as service:
        where = plan.target.directory.resolve()
        sources = [evidence.build(source, directory=where, url=service.url) for source in plan.evidence]
        found, skipped, unusable = _play(plan, service, sources, progress)
        versions, asgi = _about(service)
        extra: dict[str, Any] = {}
        if plan.platform and unusable is None:
            progress("platform")
            extra["platform"] = platforms.facts(service, grace=plan.grace)
        if plan.nginx and unusable is None:
            progress("nginx")
            extra["behind_nginx"] = {
                "platform": platforms.behind_nginx(service),
                "service": _behind_nginx(plan, service, sources, found),
            }
    return Report(
        target=plan.target.app or plan.target.url or "",
        server=_named(service, versions, found),
        versions=versions,
        asgi=asgi,
        findings=tuple(found),
        skipped=skipped,
        notes=tuple(hints.notes(plan, found, where)),
        unusable=unusable,
        seconds=time.monotonic() - began,
        **extra,
    )


def _play(
    plan: Plan,
    service: Started | Running,
    sources: Sequence[evidence.Evidence],
    progress: Callable[[str], None],
) -> tuple[list[Finding], dict[str, str], str | None]:
    """The findings, what was skipped and why, and why nothing else was played if the first one is useless."""
    stage = Stage(plan, service, sources)
    found: list[Finding] = []
    skipped: dict[str, str] = {}
    for scenario in _in_order(plan):
        progress(scenario.name)
        try:
            trace = stage.play(scenario)
        except PlanError as exc:
            skipped[scenario.name] = str(exc)
            continue
        except OSError as exc:
            skipped[scenario.name] = f"the connection failed: {exc}"
            continue
        finding = findings.judge(plan, trace, _undisturbed(found))
        found.append(dataclasses.replace(finding, verdict=verdicts.sentences(finding)))
        unusable = hints.unusable(plan, finding, service)
        if unusable is not None:
            return found, skipped, unusable
    if not found:
        raise PlanError("\n".join(dict.fromkeys(skipped.values())))
    return found, skipped, None


def _named(service: Started | Running, versions: Mapping[str, str], found: Sequence[Finding]) -> str:
    """The server and its version; a running service says it itself, or nobody does."""
    if service.tape is not None:
        return f"{service.server} {versions.get(service.server, '')}".rstrip()
    said = next(
        (view.headers["server"] for f in found for view in f.trace.views if "server" in view.headers), ""
    )
    return f"{service.server} ({said})" if said else service.server


def _behind_nginx(
    plan: Plan, service: Started | Running, sources: Sequence[evidence.Evidence], found: Sequence[Finding]
) -> Mapping[str, object]:
    """The service's own handler, left through a proxy, once per configuration."""
    if nginx.binary() is None:
        return {"skipped": nginx.ABSENT}
    leave = next((f.trace.scenario for f in found if f.trace.scenario.behaviour is Behaviour.LEAVE), LEAVE)
    told: dict[str, object] = {}
    for name, options in nginx.CONFIGURATIONS.items():
        with nginx.proxy(service.url, options) as url:
            trace = Stage(plan, service, sources, url=url).play(leave)
        finding = findings.judge(plan, trace, _undisturbed(found))
        told[name] = {
            "outcome": finding.outcome.value if finding.outcome else None,
            **platform_as_json(finding),
        }
    return told


def _undisturbed(found: Sequence[Finding]) -> Trace | None:
    return next((f.trace for f in found if f.trace.scenario.behaviour is Behaviour.STAY), None)


def _in_order(plan: Plan) -> list[Scenario]:
    asked = list(plan.scenarios) or [
        Scenario(name=name, behaviour=Behaviour(name), leaving=Leaving.FIN) for name in DEFAULT
    ]
    return sorted(asked, key=lambda scenario: scenario.behaviour is not Behaviour.STAY)


def _about(service: Started | Running) -> tuple[dict[str, str], dict[str, str]]:
    if service.tape is None:
        return {}, {}
    happenings = service.tape.catch_up()
    known: dict[str, str] = next((h["versions"] for h in happenings if h.kind == "app.loaded"), {})
    others = {server.value for server in Server} - {service.server}
    versions = {name: version for name, version in known.items() if name not in others}
    asgi: dict[str, object] = next((h["asgi"] for h in happenings if h.kind == "request.start"), {})
    return versions, {name: str(value) for name, value in asgi.items()}


def _finding_as_json(finding: Finding) -> dict[str, Any]:
    trace = finding.trace
    return {
        "name": trace.scenario.name,
        "thread": trace.thread,
        "outcome": finding.outcome.value if finding.outcome else None,
        "verdict": list(finding.verdict),
        "executed": dict(finding.executed),
        "in_flight_when_cut": list(finding.in_flight),
        "steps": _steps(finding),
        "recorded": finding.record.as_json() if finding.record else None,
        "recorded_before_return": finding.at_return.as_json() if finding.at_return else None,
        "unrecorded": dict(finding.unrecorded),
        "repeated": list(finding.repeated),
        "picked_up_and_finished": finding.picked_up,
        "clients": [view.as_json() for view in trace.views],
        "facts": {found.source: dict(found.facts) for found in trace.at_end if found.facts},
        "effects": {f.source: dict(f.effects) for f in trace.at_end if f.effects is not None},
        "platform": platform_as_json(finding),
        "failures": [failure.value for failure in finding.failures],
        "server_exit": None
        if trace.exited is None
        else {"in_time": trace.exited, "after": trace.exit_seconds},
        "came_to_rest": trace.settled,
    }


def platform_as_json(finding: Finding) -> dict[str, Any]:
    """What server and framework did, as JSON values."""
    facts = dataclasses.asdict(finding.platform)
    return {**facts, "generators_left": list(finding.platform.generators_left)}


def _steps(finding: Finding) -> dict[str, Any] | None:
    progress = finding.progress
    if progress is None:
        return None
    names = ("at_leaving", "after", "at_end", "missing", "complete")
    return {"witness": progress.witness, **{name: dict(getattr(progress, name)) for name in names}}
