"""Hosts with addresses of their own on one machine, whose lines can be cut: network namespaces, all plugged into one
that is the switch; nothing leaves them. They need root and iproute2.
"""

from __future__ import annotations

import subprocess
from dataclasses import dataclass

from support import alive

SLOW_LINE = 99  # the last number of an address that is the switch's own
PREFIX = "coterie-test"


def ip(*words: str, check: bool = True) -> str:
    """What `ip` says."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True)
    assert not check or done.returncode == 0, done.stderr
    return done.stdout


@dataclass
class Network:
    """Hosts on one switch: `10.77.0.x`, each by the last number of its address."""

    mark: str
    numbers: dict[str, int]

    def namespace(self, host: str) -> str:
        return f"{self.mark}-{host}"

    def within(self, host: str) -> tuple[str, ...]:
        """The words before a command that is to run on a host."""
        return ("ip", "netns", "exec", self.namespace(host))

    def build(self) -> None:
        switch = self.namespace("switch")
        ip("netns", "add", switch)
        ip("-n", switch, "link", "add", "bridge", "type", "bridge")
        ip("-n", switch, "addr", "add", f"10.77.0.{SLOW_LINE}/24", "dev", "bridge")
        for link in ("bridge", "lo"):
            ip("-n", switch, "link", "set", link, "up")
        for number, host in enumerate(self.numbers):
            space = self.namespace(host)
            ip("netns", "add", space)
            ip("-n", switch, "link", "add", f"plug{number}", "type", "veth", "peer", "name", "line", "netns", space)
            ip("-n", switch, "link", "set", f"plug{number}", "master", "bridge")
            ip("-n", space, "addr", "add", f"10.77.0.{self.numbers[host]}/24", "dev", "line")
            for link in ("line", "lo"):
                ip("-n", space, "link", "set", link, "up")
            ip("-n", switch, "link", "set", f"plug{number}", "up")

    def plug(self, host: str, into: bool) -> None:
        """Plug a host's line in or out at the switch: neither end is told that a connection is gone."""
        number = list(self.numbers).index(host)
        ip("-n", self.namespace("switch"), "link", "set", f"plug{number}", "up" if into else "down")

    def move(self, host: str, number: int) -> None:
        """Give a host another address."""
        space = self.namespace(host)
        ip("-n", space, "addr", "del", f"10.77.0.{self.numbers[host]}/24", "dev", "line")
        ip("-n", space, "addr", "add", f"10.77.0.{number}/24", "dev", "line")
        self.numbers[host] = number

    def remove(self) -> None:
        for host in ("switch", *self.numbers):
            ip("netns", "del", self.namespace(host), check=False)


def remove_left_overs() -> None:
    """Namespaces of tests that were killed."""
    for line in ip("netns", "list").splitlines():
        name = line.split()[0]
        if name.startswith(PREFIX) and not alive(int(name.removeprefix(f"{PREFIX}-").split("-")[0])):
            ip("netns", "del", name, check=False)
