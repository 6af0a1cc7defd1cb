"""Whether a study's folder holds what was written, all of it, and nothing else."""

from __future__ import annotations

from pathlib import Path

from flatmin.core.pages import Listing, Page, Remarks
from flatmin.core.shown import Shown
from flatmin.study.store import Store


class Verification(Shown):
    """What was found in a study's folder; `missing` is None where the total is not known."""

    directory: Path
    shards: int
    faults: dict[str, str]
    missing: int | None

    @property
    def whole(self) -> bool:
        """Whether nothing is damaged, strange or missing."""
        return not self.faults and not self.missing

    @property
    def verdict(self) -> str:
        """In one sentence."""
        if self.whole:
            return f"{self.directory}: {self.shards} shards, every one as it was written."
        found = []
        if self.faults:
            found.append(f"{len(self.faults)} files are not as they should be")
        if self.missing:
            found.append(f"{self.missing} runs are missing")
        return f"{self.directory}: {' and '.join(found)}: flatmin study run makes them anew."

    def page(self) -> Page:
        """What `flatmin study verify` prints."""
        blocks: Page = [Remarks(self.verdict)]
        if self.faults:
            blocks.insert(0, Listing(("File", "What is wrong"), list(self.faults.items())))
        return blocks


def verify_study(directory: str | Path) -> Verification:
    """Read every shard of a study and compare it with its own digests."""
    store = Store.open(Path(directory))
    faults = store.faults()
    return Verification(
        directory=store.directory,
        shards=len(store.finished()),
        faults=faults,
        missing=store.missing(faults),
    )
