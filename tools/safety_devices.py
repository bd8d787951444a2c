"""Switch safety devices off, one at a time, and fail if `make test` would not notice.

    make mutants DEVICES=1

tests/safety_devices.toml names the devices. Each is a text of a module, the text that takes its place, and
tests that have to notice. They pass while the device is on. It works in a temporary clone of a commit.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from dataclasses import dataclass
from pathlib import Path

from broken_clone import Clone, clone_of, limit_s

LIST = Path("tests") / "safety_devices.toml"


@dataclass(frozen=True, kw_only=True)
class Device:
    """A few lines without which the platform would lose, double or reveal something."""

    name: str
    module: str
    """Path below the package."""
    text: str
    """As it is in the module, exactly once."""
    without: str
    """What takes its place."""
    tests: list[str]

    def problem(self, source: str) -> str:
        """Return why the device cannot be switched off in this text of its module; empty if it can."""
        if (count := source.count(self.text)) != 1:
            return f"the text occurs {count} times in {self.module}: bring {LIST} up to date"
        try:
            compile(self.switched_off(source), self.module, "exec")
        except SyntaxError as err:
            return f"the module does not compile without it: {err}"
        return ""

    def switched_off(self, source: str) -> str:
        """Return the text of the module without the device."""
        return source.replace(self.text, self.without)


def read_devices(text: str) -> list[Device]:
    """Return the devices of a list in TOML."""
    return [Device(**entry) for entry in tomllib.loads(text)["device"]]


def why_unnoticed(device: Device, clone: Clone) -> tuple[str, str]:
    """Switch a device off and run its tests.

    Returns: Why it is not noticed; and, if that is empty, the test that noticed.
    """
    source = clone.read(device.module)
    if problem := device.problem(source):
        return problem, ""
    clean_s = clone.clean_run_s(device.tests)
    with clone.broken(device.module, device.switched_off(source)):
        outcome = clone.run(device.tests, limit_s(clean_s))
    # A module that does not import, and tests that hang, say nothing about the device.
    if outcome.verdict != "killed" or "::" not in outcome.noticed_by:
        return f"no test failed ({outcome.verdict})\n{outcome.output}", ""
    return "", outcome.noticed_by


def main() -> int:
    """Returns: 0 if every device was noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("words", nargs="*", help="try devices with one of these words in the name")
    parser.add_argument("--revision", default="HEAD", help="the commit to break; default: HEAD")
    options = parser.parse_args()
    unnoticed = 0
    with clone_of(options.revision) as clone:
        devices = [
            one
            for one in read_devices((clone.root / LIST).read_text())
            if not options.words or any(word in one.name for word in options.words)
        ]
        for device in devices:
            why, noticed_by = why_unnoticed(device, clone)
            unnoticed += bool(why)
            print(f"{device.name}: {f'NOT NOTICED: {why}' if why else noticed_by}", flush=True)
    is_ok = bool(devices) and not unnoticed
    print(f"devices: {'ok' if is_ok else 'FAILED'} tried={len(devices)} unnoticed={unnoticed}")
    return 0 if is_ok else 1


if __name__ == "__main__":
    sys.exit(main())
