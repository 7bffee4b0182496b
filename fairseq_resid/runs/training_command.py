"""The command line of fairseq-train as an object: its data folder and its flags."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

PROGRAM = "fairseq-train"
FLAG = re.compile(r"--?[A-Za-z]")
# Flags with two names in fairseq.
SYNONYMS = {
    "--max-sentences": "--batch-size",
    "--max-sentences-valid": "--batch-size-valid",
    "-s": "--source-lang",
    "-t": "--target-lang",
}
BACKEND = "--residual-backend"
# Flags that may differ between runs with the same settings.
OWN_FLAGS = ("--seed", "--save-dir", "--log-file", "--user-dir", BACKEND)
# Flags for folders and the time limit. They do not affect the trained model.
PLACE_FLAGS = ("--user-dir", "--save-dir", "--log-file", "--stop-time-hours")
# Values of flags that train the same model: the first is compared as if it were the second.
CHUNKED = "chunked_label_smoothed_cross_entropy"
EQUIVALENTS: dict[tuple[str, tuple[str, ...]], tuple[str, ...]] = {
    ("--criterion", (CHUNKED,)): ("label_smoothed_cross_entropy",)
}


@dataclass(frozen=True)
class TrainingCommand:
    """A data folder, empty if there is none yet, and (flag, values) in the order of the command line.

    If a flag is given more than once, the last one counts, as in fairseq.
    """

    data: str = ""
    flags: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @classmethod
    def parse(cls, argv: Sequence[str]) -> TrainingCommand:
        """Read a command line, with or without the program's name; words before the first flag are the data folder.

        >>> TrainingCommand.parse(["data", "--lr", "0.1", "--fp16", "--adam-betas=(0.9, 0.98)"]).flags
        (('--lr', ('0.1',)), ('--fp16', ()), ('--adam-betas', ('(0.9, 0.98)',)))
        """
        data, found = "", list[tuple[str, list[str]]]()
        for word in argv[1:] if argv[:1] == [PROGRAM] else argv:
            if FLAG.match(word):
                flag, equals, value = word.partition("=")
                found.append((SYNONYMS.get(flag, flag), [value] if equals else []))
            elif found:
                found[-1][1].append(word)
            else:
                data = word
        return cls(data, tuple((flag, tuple(values)) for flag, values in found))

    @property
    def arguments(self) -> list[str]:
        """The data folder and the flags, as words."""
        words = [word for flag, values in self.flags for word in (flag, *values)]
        return [self.data, *words] if self.data else words

    @property
    def argv(self) -> list[str]:
        """The whole command, with the program's name."""
        return [PROGRAM, *self.arguments]

    def __contains__(self, flag: str) -> bool:
        return any(name == flag for name, _ in self.flags)

    def get(self, flag: str) -> tuple[str, ...] | None:
        return dict(self.flags).get(flag)

    def value(self, flag: str, default: str) -> str:
        """Return the value of a flag; if it has several, the last one."""
        return (self.get(flag) or (default,))[-1]

    def integer(self, flag: str, default: int = 0) -> int:
        """Return the value of a flag that takes one whole number.

        Raises: ValueError naming the flag and the value, such as fairseq's `--update-freq 1,2`.
        """
        value = self.value(flag, str(default))
        try:
            return int(value)
        except ValueError:
            raise ValueError(f"{flag} {value}: must be one whole number") from None

    def without(self, flags: Iterable[str]) -> TrainingCommand:
        dropped = set(flags)
        return replace(self, flags=tuple(group for group in self.flags if group[0] not in dropped))

    def setting(self) -> TrainingCommand:
        """Return what is equal for runs that differ only by seed: without OWN_FLAGS, and with EQUIVALENTS replaced."""
        return self.without(OWN_FLAGS).with_equivalents()

    def with_equivalents(self) -> TrainingCommand:
        return replace(self, flags=tuple((flag, EQUIVALENTS.get((flag, given), given)) for flag, given in self.flags))

    def only(self, flags: Iterable[str]) -> TrainingCommand:
        """Return only some flags, each once, in the given order."""
        given = dict(self.flags)
        return TrainingCommand("", tuple((flag, given[flag]) for flag in flags if flag in given))

    def and_then(self, other: TrainingCommand) -> TrainingCommand:
        """Return this command followed by the flags of another one, with the data folder of the other if it has one."""
        return TrainingCommand(other.data or self.data, (*self.flags, *other.flags))

    def changes(self, now: TrainingCommand) -> list[str]:
        """Return the changes of settings from this command to `now`, a phrase for each flag.

        The backend is no setting of a model.

        >>> TrainingCommand.parse(["--lr", "1"]).changes(TrainingCommand.parse(["--lr", "2", "--bf16"]))
        ['--lr was 1, now 2', '--bf16 was not given, now given']
        """
        old, new = (dict(one.without([BACKEND]).with_equivalents().flags) for one in (self, now))

        def shown(given: dict[str, tuple[str, ...]], flag: str) -> str:
            return "not given" if flag not in given else " ".join(given[flag]) or "given"

        data = [f"the data was {self.data or 'not given'}, now {now.data or 'not given'}"]
        return [
            *(data if self.data != now.data else []),
            *(f"{flag} was {shown(old, flag)}, now {shown(new, flag)}"
              for flag in {**old, **new} if old.get(flag) != new.get(flag)),
        ]  # fmt: skip
