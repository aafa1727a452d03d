"""What is checked, as the command line says it: a server that runs, or an engine that may be started."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from checks import keys, suite
from checks.launcher import HostLauncher, ImageLauncher, Launcher, Model
from checks.report import Report, Result
from checks.room import Room
from errors import BadInput


@dataclass(frozen=True, kw_only=True)
class Subject:
    """One subject of the suite. Give `url`, or `image` or `programs` with `model`.

    Args:
        url, key_file: a server that runs, and the file with its key.
        image: an image whose engine is started in containers.
        programs: a folder with the engine's programs, started on this host.
        model, draft: files for the servers that are started; `draft` is a draft head of its own.
        embedded: the draft head is inside the model.
        device: what must hold the weights, as ROCm0; empty for the CPU.
        extra: further llama-server arguments. options: further arguments of docker run.
        quick: leave out the slower checks, and make fewer rounds.
        keep: servers that may run at the same time.
    """

    url: str = ""
    key_file: str = ""
    image: str = ""
    programs: str = ""
    model: str = ""
    draft: str = ""
    embedded: bool = False
    device: str = ""
    extra: str = ""
    options: str = ""
    quick: bool = False
    keep: int = 2

    @property
    def name(self) -> str:
        """What is checked, for the report."""
        return self.url or f"{self.image or self.programs} with {Path(self.model).name}"

    def words(self) -> list[str]:
        """The options of `./inv check` that name this subject."""
        valued = {
            "--url": self.url, "--key-file": self.key_file, "--image": self.image,
            "--programs": self.programs, "--model": self.model, "--draft": self.draft,
            "--device": self.device, "--extra": self.extra, "--options": self.options,
        }  # fmt: skip
        words = [word for option, value in valued.items() if value for word in (option, value)]
        words += ["--embedded"] if self.embedded else []
        words += ["--quick"] if self.quick else []
        return [*words, *(["--keep", str(self.keep)] if self.keep != 2 else [])]

    def launcher(self) -> Launcher | None:
        """What starts servers, or None for a server that runs.

        Raises:
            BadInput: more than one of url, image and programs, or a file that is not there.
        """
        if sum(map(bool, (self.url, self.image, self.programs))) != 1:
            raise BadInput("give exactly one of --url, --image and --programs")
        if self.url:
            return None
        if not self.model:
            raise BadInput("servers can be started only with a model", hint="--model FILE")
        draft = Path(self.draft).absolute() if self.draft else None
        model = Model(path=Path(self.model).absolute(), draft=draft, embedded=self.embedded)
        extra = shlex.split(self.extra)
        if self.image:
            return ImageLauncher(self.image, model, extra, shlex.split(self.options))
        return HostLauncher(Path(self.programs).absolute(), model, extra)


def run(
    subject: Subject,
    *,
    only: Collection[str] = (),
    accept: Collection[str] = (),
    on_result: Callable[[Result], None] = lambda result: None,
) -> Report:
    """Run the suite on a subject; see `suite.run` for `only`, `accept` and `on_result`."""
    suite.select([*only, *accept])
    launcher = subject.launcher()
    if subject.keep < 1:
        raise BadInput(f"--keep {subject.keep} lets no server run", hint="--keep 1")
    key = keys.read(subject.key_file) if subject.key_file else None

    def repeat(check: str) -> str:
        return shlex.join(["./inv", "check", *subject.words(), "--only", check])

    with Room(
        url=subject.url,
        key=key,
        launcher=launcher,
        quick=subject.quick,
        device=subject.device,
        keep=subject.keep,
    ) as room:
        return suite.run(
            room, target=subject.name, only=only, accept=accept, repeat=repeat, on_result=on_result
        )
