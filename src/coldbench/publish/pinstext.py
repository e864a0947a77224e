"""The preflight of a stack of pins as text for a terminal."""

from tabulate import tabulate

from coldbench.sources.pincheck import KINDS, Preflight


def preflight(found: Preflight) -> str:
    """Return a table of the pins and every finding of one build."""
    rows = [
        [
            one.label,
            "n/a" if one.commits is None else one.commits,
            _merges(one.alone),
            _merges(one.stacked),
            *(("n/a",) * 3 if one.changes is None else one.changes.values()),
        ]
        for one in found.pins
    ]
    head = ("", "commits", "alone", "in the stack", "files", "+", "-")
    table = tabulate(rows, headers=head, disable_numparse=True, colalign=("left", *["right"] * 6))
    sums = found.changes
    whole = (
        f"The pins that merge change {sums['files']} files (+{sums['insertions']} "
        f"-{sums['deletions']}); tree {found.tree}."
    )
    lines = [f"Build {found.build}: base {found.base}", "", table, "", whole, ""]
    if found.findings:
        lines.append(f"{len(found.findings)} found:")
        lines += [f"- {one.kind}: {one.text}" for one in found.findings]
        kinds = dict.fromkeys(one.kind for one in found.findings)
        lines += ["", *(f"  {kind} = {KINDS[kind]}" for kind in kinds)]
    else:
        lines.append("Nothing is wrong with the stack.")
    return "\n".join(lines)


def _merges(how: bool | None) -> str:
    return "n/a" if how is None else "merges" if how else "conflict"
