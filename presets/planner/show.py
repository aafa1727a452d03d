"""A plan for people: a bar, a table, the verdict, warnings and advice."""

from __future__ import annotations

from io import StringIO
from typing import Final

import say
from presets.planner.assess import Plan
from presets.planner.terms import MIB

VERDICTS: Final = {
    "fits": "[green]fits[/green]",
    "tight": "[yellow]tight[/yellow]",
    "too-big": "[red]too big[/red]",
    "unknown": "[red]unknown: the terms are bounds, nothing is promised[/red]",
}
MARKS: Final = {"exact": "", "bounded": "at most", "measured": "about"}
COLOURS: Final = {"weights": "blue", "draft": "magenta", "compute": "yellow", "other": "cyan"}


def text(plan: Plan, *, width: int | None = None, colour: bool = False) -> str:
    """The whole view as text.

    Args:
        width: columns; None takes those of the terminal.
        colour: with terminal colours.
    """
    from rich.console import Console

    out = StringIO()
    console = Console(file=out, width=width, force_terminal=colour, no_color=not colour, highlight=False)
    _bar(console, plan)
    _table(console, plan)
    _lines(console, plan)
    return out.getvalue().rstrip("\n")


def _bar(console: object, plan: Plan) -> None:
    """One line: the share of each kind of term of the budget, and what stays free."""
    from rich.console import Console
    from rich.text import Text

    assert isinstance(console, Console)
    columns = min(console.width, 100) - 2
    whole = max(plan.budget.budget_bytes, plan.total_bytes, 1)
    bar = Text("|")
    used = 0
    for kind, colour in COLOURS.items():
        size = sum(term.bytes for term in plan.terms if _kind(term.name) == kind)
        cells = round(columns * size / whole)
        used += cells
        bar.append(
            "#" * cells if kind == "weights" else {"draft": "d", "compute": "c"}.get(kind, "=") * cells,
            colour,
        )
    bar.append("." * max(columns - used, 0) + "|")
    console.print(bar, no_wrap=True, crop=True)


def _kind(name: str) -> str:
    for kind in ("weights", "draft", "compute"):
        if name.startswith(kind):
            return kind
    return "weights" if name == "ngram_table" else "other"


def _table(console: object, plan: Plan) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    assert isinstance(console, Console)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("term")
    table.add_column("MiB", justify="right")
    table.add_column("where")
    table.add_column("")
    table.add_column("how", overflow="fold")
    for term in plan.terms:
        table.add_row(term.name, f"{term.bytes / MIB:,.2f}", term.where, MARKS[term.certainty], term.formula)
    table.add_section()
    device, host = plan.bytes_on("device") / MIB, plan.bytes_on("host") / MIB
    table.add_row(
        "total", f"{plan.total_bytes / MIB:,.2f}", "", "", f"device {device:,.0f} + host {host:,.0f}"
    )
    console.print(table)


def _lines(console: object, plan: Plan) -> None:
    from rich.console import Console

    assert isinstance(console, Console)
    budget = plan.budget
    parts = f"{say.size(budget.available_bytes)} available - {say.size(budget.reserve_bytes)} reserve"
    needs = f"{say.size(plan.total_bytes)} of {say.size(budget.budget_bytes)} = {parts}"
    console.print(f"{VERDICTS[plan.verdict]}: {needs}; headroom {say.size(plan.headroom_bytes)}")
    slots = "1 slot" if plan.shape.slots == 1 else f"{plan.shape.slots} slots"
    console.print(f"{slots} of {plan.per_slot_context} tokens, {plan.kv_cells} KV cells")
    for warning in plan.warnings:
        console.print(f"[yellow]warning[/yellow]  {_plain(warning)}")
    for advice in plan.advice:
        console.print(f"advice   {_plain(advice)}")


def _plain(line: str) -> str:
    from rich.markup import escape

    return escape(line)
