"""pytest plugin of the suite: options, header and JSON report.

It is registered as an entry point so that `pytest --pyargs deepinfer.conformance --backend NAME` works, and therefore
sits in every pytest session of an environment that has deepinfer. Hence two invariants: importing it imports nothing
heavy, and it adds options only when the suite itself is asked for on the command line. An option name that somebody
else took is left to them; `--deepinfer-NAME` always works.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from deepinfer.conformance.report import Result

MODULES = ("deepinfer.conformance", "deepinfer.conformance.test_conformance")
PATHS = ("deepinfer/conformance", "deepinfer/conformance/test_conformance.py")
RESULT = "deepinfer_result"

OPTIONS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("backend", {"help": "device to test: name[/driver][:index]", "default": None}),
    ("tier", {"help": "quick (default) or full", "choices": ("quick", "full"), "default": "quick"}),
    ("levels", {"help": "comma-separated levels, default L0,L1,L2,L3", "default": "L0,L1,L2,L3"}),
    ("ops", {"help": "comma-separated ops or families that L2 is limited to", "default": None}),
    ("case-profile", {"help": "also run cases tagged profile:NAME", "default": None}),
    ("conformance-toml", {"help": "profile file instead of the backend's own", "default": None}),
    ("conformance-report", {"help": "write the JSON report to this file", "default": None}),
    ("model", {"help": "checkpoint directory for L3", "default": None}),
)


def wanted(args: list[str]) -> bool:
    """Whether the command line runs the suite (naming this plugin with -p is not enough)."""
    names = [arg.partition("::")[0].replace("\\", "/").rstrip("/") for arg in args]
    return any(name in MODULES or name.endswith(PATHS) for name in names)


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config, parser: pytest.Parser, args: list[str]) -> None:
    """Add the options when the suite is asked for; this is the first moment that knows the command line."""
    if not wanted(args):
        return
    group = parser.getgroup("deepinfer conformance")
    for name, settings in OPTIONS:
        dest = option_dest(name)
        group.addoption(f"--deepinfer-{name}", dest=dest, **settings)
        if _free(parser, name):  # else another plugin has it, and the long name serves
            group.addoption(f"--{name}", dest=dest, **settings)


def _free(parser: pytest.Parser, name: str) -> bool:
    """Whether no other plugin took option --NAME."""
    probe = f"--{name}=x"
    try:
        return probe in parser.parse_known_and_unknown_args([probe])[1]
    except (pytest.UsageError, SystemExit):  # taken by an option that refuses this value
        return False


def option_dest(name: str) -> str:
    """Attribute of config.option that holds option `name`."""
    return "deepinfer_" + name.replace("-", "_")


def option(config: pytest.Config, name: str) -> str | None:
    """Value of option `name`, None when the suite's options are absent."""
    value: str | None = getattr(config.option, option_dest(name), None)
    return value


def pytest_configure(config: pytest.Config) -> None:
    """Remember the results of this session."""
    if option(config, "tier") is not None:
        config.pluginmanager.register(Session(config), "deepinfer-conformance-session")


class Session:
    """Hooks of a session that runs the suite."""

    def __init__(self, config: pytest.Config) -> None:
        self.config = config
        self.results: list[Result] = []

    def pytest_report_header(self, config: pytest.Config) -> str:
        return f"deepinfer conformance: backend {option(config, 'backend')}, tier {option(config, 'tier')}"

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            for name, values in report.user_properties:
                if name == RESULT:
                    self.results += [_restore(value) for value in values]  # type: ignore[attr-defined]

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        if not self.results:
            return
        done = self.report()
        counts = ", ".join(f"{number} {name}" for name, number in sorted(done.counts().items()))
        terminalreporter.write_sep("-", "deepinfer conformance")
        terminalreporter.write_line(
            f"{len(self.results)} checks on {done.cases()} cases of {len(done.ops())} ops: {counts}"
        )
        path = option(self.config, "conformance-report")
        if path:
            done.write(path)
            terminalreporter.write_line(f"report written to {path}")

    def report(self) -> Any:
        """The session's results as a `Report`."""
        from deepinfer.conformance import suite
        from deepinfer.conformance.report import Report

        backend = option(self.config, "backend") or ""
        chosen = suite.target(backend)
        seconds = sum(result.seconds for result in self.results)
        tier = option(self.config, "tier") or "quick"
        return Report(
            chosen.backend.name, suite.describe(chosen), tier, suite.versions(), self.results, seconds,
            kernels=suite.proved(chosen, self.results),
        )


def _restore(value: Any) -> Result:
    from deepinfer.conformance.report import Result

    return Result(**value)
