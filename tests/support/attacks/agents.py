"""Agents that try to leave the denominator. Each leaves one line of honest work first."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

if TYPE_CHECKING:
    from cooperbench.agents.session import AgentSession


class _Attacker:
    uses_model = False
    command: ClassVar[str]

    def run(self, session: AgentSession) -> None:
        session.execute("sed -i '6s/$/ honest/' app.txt")
        session.execute(self.command, timeout_seconds=10)


class KillsEverything(_Attacker):
    command = "kill -9 -1; sleep 5"


class KillsEverythingLater(_Attacker):
    """When it has ended and its patch is being taken."""

    command = "(sleep 0.3; kill -9 -1) >/dev/null 2>&1 &"

    def run(self, session: AgentSession) -> None:
        super().run(session)
        session.execute("sleep 1; true")


class StopsEverything(_Attacker):
    """Nothing dies, nothing answers."""

    command = "kill -STOP -1; sleep 5"


class HandsInTooMuch(_Attacker):
    command = "head -c 100000000 /dev/urandom >large.bin"


class HandsInABomb(_Attacker):
    command = "truncate -s 600M zeros.bin"


class RemovesTheRepository(_Attacker):
    command = "cd /; rm -rf /workspace/repo; mkdir -p /workspace/repo"


class LeavesStrangeFiles(_Attacker):
    command = "mkfifo pipe; ln -s /dev/zero zero; mkdir -p $(seq -s / 300); : >$'new\\nline'; chmod 0 app.txt; rm -rf .git"


class BreaksGit(_Attacker):
    command = "for name in git stat mktemp; do rm -f /usr/bin/$name; done"


class ReplacesGit(_Attacker):
    command = "printf '#!/bin/sh\\nexec sleep 1000\\n' >/usr/bin/git"


class RemovesBash(_Attacker):
    command = "rm -f /bin/bash /usr/bin/bash; kill -9 $PPID"


class HidesItsPatch(_Attacker):
    """A folder lies where the patch is to be written."""

    command = "mkdir -p /cooperbench/work.patch/x"


class ReplacesItsPatch(_Attacker):
    """As soon as it has been written."""

    command = "(while :; do [ ! -f /cooperbench/work.patch ] || rm -f /cooperbench/work.patch; done) >/dev/null 2>&1 &"


class MovesTheHarness(_Attacker):
    """The files by which commands are started."""

    command = "cd /; mv /cooperbench /elsewhere; chmod 0 /tmp"

    def run(self, session: AgentSession) -> None:
        super().run(session)
        session.execute("true")


class ClosesItsShells(_Attacker):
    """The folder that the shells of the harness need: none can be started any more."""

    command = "cd /cooperbench/scratch && rm -rf -- * && chmod 0 ."

    def run(self, session: AgentSession) -> None:
        super().run(session)
        session.execute("true")


class ClosesTheHarness(_Attacker):
    """The folder in which the patch is to be made."""

    command = "chmod 555 /cooperbench"
