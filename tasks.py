"""The Invoke namespace: typed parameters, docstring = help, one call into a room, print."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from invoke.collection import Collection
from invoke.context import Context
from invoke.exceptions import Exit, ParseError
from invoke.program import Program
from invoke.tasks import task

from errors import BadInput, HaloforgeError, of_system


def job(**options: Any) -> Callable[[Callable[..., int | None]], Any]:
    """An Invoke task whose user errors become one message and the exit code of their class."""

    def wrap(body: Callable[..., int | None]) -> Any:
        @functools.wraps(body)
        def guarded(*args: Any, **kwargs: Any) -> None:
            try:
                code = body(*args, **kwargs)
            except HaloforgeError as error:
                print(f"error: {error}", file=sys.stderr)
                sys.exit(error.exit_code)
            except KeyboardInterrupt:
                print("interrupted; run the same command again to go on", file=sys.stderr)
                sys.exit(130)
            except BrokenPipeError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
                sys.exit(141)
            except OSError as error:
                told = of_system(error)
                if told is None:
                    raise
                print(f"error: {told}", file=sys.stderr)
                sys.exit(told.exit_code)
            if code:
                sys.exit(code)

        # Invoke would make up a short flag from whatever letter is free: -j was jobs here and json there.
        return task(auto_shortflags=False, **options)(guarded)

    return wrap


_parse_of_invoke = Program.parse_tasks


def _parse_tasks(program: Program) -> None:
    """Invoke's own, but a wrong word or flag is bad input (2): Invoke ends with 1, or with a traceback."""
    try:
        _parse_of_invoke(program)
    except ParseError as error:
        name = getattr(error.context, "name", None)
        hint = f"./inv --help {name}" if name else "./inv --list"
        raise Exit(f"error: {error}\n  next: {hint}", code=BadInput.exit_code) from error
    except ValueError as error:
        hint = "./inv --help TASK says which flags take an INT"
        raise Exit(
            f"error: a flag wants another value: {error}\n  next: {hint}", code=BadInput.exit_code
        ) from error


_list_of_invoke = Program.parse_cleanup


def _list_tasks(program: Program) -> None:
    """Invoke's own lists and help; a reader that has seen enough (`| head`) is no error to trace."""
    try:
        _list_of_invoke(program)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise Exit(code=141) from None


# Invoke has no hook for these, and `invoke` itself must act like `./inv`, so its methods are replaced.
Program.parse_cleanup = _list_tasks  # type: ignore[method-assign, assignment]
Program.parse_tasks = _parse_tasks  # type: ignore[method-assign, assignment]

ns = Collection()


# --- doctor ---
@job(
    help={
        "install": "install what is missing from the distribution's packages, and start the Docker daemon",
        "flavour": "what is to run here: cpu, rocm or vulkan; decides how bad a fault of the GPU is",
        "json": "print one JSON document",
    },
)
def doctor(_: Context, install: bool = False, flavour: str = "", json: bool = False) -> int:
    """Look at this host: what it lacks, why that matters, which command mends it."""
    import say
    from compose import doctor as doctors

    if install:
        doctors.install()
    findings = doctors.examine(flavour or None)
    say.document([f.to_json() for f in findings]) if json else print(doctors.report(findings))
    return 3 if any(f.severity == "error" for f in findings) else 0


@job(
    help={
        "install": "install what is missing, Docker and the programs that tests run, and start the daemon",
        "unit": "only tests/unit and the style: seconds, no Docker",
        "everything": "also what takes an hour each: the marks rocm_build and faults",
    },
)
def run_tests(c: Context, install: bool = False, unit: bool = False, everything: bool = False) -> int:
    """Run style, types and tests; words after -- go to pytest. What needs a GPU runs where one is."""
    import shlex

    from compose import doctor as doctors
    from tests import runner

    if install:
        runner.install_tools()
    if not unit:
        doctors.gate(install_missing=install)
        runner.require_tools()
    chosen = runner.Choice(
        unit=unit, everything=everything, gpu=doctors.gpu_ready(), arguments=shlex.split(c.remainder)
    )
    return runner.run(chosen)


ns.add_task(doctor)
ns.add_task(run_tests, name="test")


# --- patches ---
ENGINE_HELP = "engine: a folder of patches/ (default llama.cpp)"
WITHOUT_HELP = "leave this patch out; may be given several times"
ALSO_HELP = "switch this patch on that is off by default; may be given several times"


@job(help={"engine": ENGINE_HELP})
def fetch(_: Context, engine: str = "llama.cpp") -> None:
    """Fetch the pinned source tree of an engine from the first source that answers, and verify it."""
    from patches import engines
    from patches.fetch import fetch as fetch_tree

    print(fetch_tree(engines.load(engine)))


@job(
    iterable=["without", "also"],
    help={"engine": ENGINE_HELP, "without": WITHOUT_HELP, "also": ALSO_HELP},
)
def patch(
    _: Context,
    engine: str = "llama.cpp",
    without: list[str] | None = None,
    also: list[str] | None = None,
) -> None:
    """Apply an engine's series to its pristine tree, whole or not at all."""
    from patches import engines, tree

    print(tree.patched(engines.load(engine), without=without or (), also=also or ()).path)


@job(
    iterable=["without", "also"],
    help={
        "engine": ENGINE_HELP,
        "tree": "judge this folder instead of the pristine tree",
        "without": WITHOUT_HELP,
        "also": ALSO_HELP,
        "json": "print one JSON document",
    },
)
def patch_status(
    _: Context,
    engine: str = "llama.cpp",
    tree: str = "",
    without: list[str] | None = None,
    also: list[str] | None = None,
    json: bool = False,
) -> int:
    """Say of every patch whether it applies, is upstream, partly so, in conflict, or the tree is foreign."""
    from pathlib import Path

    import say
    from patches import engines, report
    from patches import tree as trees

    pin = engines.load(engine)
    verdicts = trees.status(pin, Path(tree) if tree else None, without=without or (), also=also or ())
    result = report.document(pin, verdicts)
    say.document(result) if json else print(report.table(pin, verdicts))
    return 0 if result["good"] else 1


@job(
    help={
        "engine": ENGINE_HELP,
        "name": "a short name, small letters and hyphens",
        "purpose": "one sentence: what the patch cures",
        "proved_by": "the test that fails without it",
    }
)
def patch_new(
    _: Context, engine: str = "llama.cpp", name: str = "", purpose: str = "", proved_by: str = ""
) -> None:
    """Begin an edit (a copy of the patched tree), or with --name make a numbered patch of it."""
    from errors import BadInput
    from patches import author, engines

    pin = engines.load(engine)
    if not name:
        print(author.begin(pin))
        return
    if not (purpose and proved_by):
        raise BadInput("--name needs --purpose and --proved-by", why="every patch says what it is for")
    made = author.finish(pin, name=name, purpose=purpose, proved_by=proved_by)
    print(pin.folder / made.file)


@job(iterable=["id"], help={"engine": ENGINE_HELP, "id": "only this patch; may be given several times"})
def patch_refresh(_: Context, engine: str = "llama.cpp", id: list[str] | None = None) -> None:
    """Re-cut patches whose lines have moved, and write their digests and the result on record."""
    from patches import author, engines

    print("\n".join(author.refresh(engines.load(engine), id or ())) or "nothing to refresh")


@job(
    positional=["id"],
    help={
        "id": "the patch to retire",
        "engine": ENGINE_HELP,
        "because": "why it must not be carried any more",
        "evidence": "how that is known",
        "verdict": "upstream, superseded, not-reachable, harmful or no-effect",
    },
)
def patch_drop(
    _: Context, id: str, because: str, evidence: str, verdict: str = "upstream", engine: str = "llama.cpp"
) -> None:
    """Retire a patch: its entry moves to the dropped ones with the reason, its file goes."""
    from patches import author, engines

    author.drop(engines.load(engine), id, because=because, evidence=evidence, verdict=verdict)


@job(
    help={
        "to": "an upstream tag, as b11500",
        "commit": "the commit it names, where no git source answers",
        "engine": ENGINE_HELP,
        "preset": "the model to check and measure with (default demo)",
        "rounds": "pairs of measurements",
        "dry": "only say what becomes of each patch",
    }
)
def patch_upgrade(
    _: Context,
    to: str,
    commit: str = "",
    engine: str = "llama.cpp",
    preset: str = "demo",
    rounds: int = 7,
    dry: bool = False,
) -> None:
    """Move an engine's pin: judge each patch, build, check and measure old against new, then write."""
    from bench import trial

    trial.move(engine, to, commit=commit, preset=preset, rounds=rounds, dry=dry)


patch_tasks = Collection("patch")
patch_tasks.add_task(patch, name="apply", default=True)
patch_tasks.add_task(patch_status, name="status")
patch_tasks.add_task(patch_new, name="new")
patch_tasks.add_task(patch_refresh, name="refresh")
patch_tasks.add_task(patch_drop, name="drop")
patch_tasks.add_task(patch_upgrade, name="upgrade")
ns.add_task(fetch)
ns.add_collection(patch_tasks)


# --- images ---
FLAVOUR_HELP = "flavour of the image: cpu, rocm or vulkan"


@job(
    help={
        "flavour": FLAVOUR_HELP,
        "engine": ENGINE_HELP,
        "cpu": "processor for the host part: generic or zen5 (default: the flavour's)",
        "base": "base image, by its name in images/bases.yaml (default: the flavour's first)",
        "jobs": "compile jobs (default: what processors and free memory allow)",
        "push": "push to this reference, HOST/NAME:TAG",
        "json": "print one JSON document",
    },
)
def build(
    _: Context,
    flavour: str = "cpu",
    engine: str = "llama.cpp",
    cpu: str = "",
    base: str = "",
    jobs: int = 0,
    push: str = "",
    json: bool = False,
) -> None:
    """Build the image of a flavour from the patched tree; does nothing if it is there."""
    import say
    from images import build as images_build
    from images import flavours
    from patches import engines, tree

    chosen = flavours.load(flavour, cpu=cpu)
    patched = tree.patched(engines.load(engine))
    record = images_build.build(chosen, patched, jobs=jobs or None, push=push or None, base=base)
    say.document(record.to_json()) if json else print(record.ref)


@job(help={"json": "print one JSON document"})
def images(_: Context, json: bool = False) -> None:
    """List the images that are here, with pin, series, flavour, size and age."""
    import say
    from images import records
    from images.table import table

    found = records.all_images()
    say.document([record.to_json() for record in found]) if json else print(table(found))


@job(help={"image": "tag, digest or id (default: the newest image of ours)"})
def images_sbom(_: Context, image: str = "") -> None:
    """Print the software bill of materials of an image, CycloneDX 1.6 as JSON."""
    from images.records import chosen
    from images.sbom import sbom

    print(sbom(chosen(image)))


@job(help={"flavour": FLAVOUR_HELP, "engine": ENGINE_HELP, "base": "as for build"})
def images_probe(_: Context, flavour: str = "rocm", engine: str = "llama.cpp", base: str = "") -> None:
    """Show that a base can build a flavour: CMake configures and one kernel compiles for the device."""
    from images import build as images_build
    from images import flavours
    from patches import engines, tree

    patched = tree.patched(engines.load(engine))
    print(images_build.probe(flavours.load(flavour), patched, base=base))


@job(positional=["base"], help={"base": "a base of images/bases.yaml"})
def images_pin(_: Context, base: str) -> None:
    """Ask the registry for the newest digest of a base's tag and write it to images/bases.yaml."""
    from images.pin import pin

    print(pin(base))


@job()
def ci_matrix(_: Context) -> None:
    """Print the job matrix of the image pipeline as one line of JSON."""
    import json

    from images.matrix import matrix

    print(json.dumps(matrix()))


image_tasks = Collection("images")
image_tasks.add_task(images, name="list", default=True)
image_tasks.add_task(images_sbom, name="sbom")
image_tasks.add_task(images_probe, name="probe")
image_tasks.add_task(images_pin, name="pin")
ns.add_task(build)
ns.add_collection(image_tasks)
ns.add_collection(Collection("ci", matrix=ci_matrix))


# --- models ---
MODEL_HELP = "only this model of the catalog"


@job(help={"model": MODEL_HELP, "json": "print one JSON document"})
def models(_: Context, model: str = "", json: bool = False) -> None:
    """List the catalog: quants, draft heads, sizes, licences, and what of it is on this machine."""
    import say
    from presets import models as room
    from presets import models_table

    rows = room.table(model or None)
    say.document([row.to_json() for row in rows]) if json else print(models_table.text(rows))


@job(
    help={
        "preset": "fetch what this preset needs (default: HALOFORGE_PRESET, else demo)",
        "limit": "cap in bytes per second over all connections; K, M and G stand for KiB, MiB and GiB",
        "files": "files at once",
        "ranges": "connections per file",
    }
)
def models_fetch(_: Context, preset: str = "", limit: str = "", files: int = 4, ranges: int = 1) -> None:
    """Fetch and verify the model and head of a preset; goes on where an earlier try stopped."""
    import os

    import say
    from presets import models as room
    from presets import models_table, schema

    chosen = schema.load(preset or os.environ.get("HALOFORGE_PRESET") or "demo")
    have = room.ensure(chosen, options=models_table.options(limit, files, ranges))
    say.step("models", f"{len(have.files)} files, {say.size(have.bytes)}, all verified")
    print(have.model)


@job(help={"model": MODEL_HELP, "json": "print one JSON document"})
def models_verify(_: Context, model: str = "", json: bool = False) -> int:
    """Read every model file again and compare its sha256 and header; says how fast it read."""
    import say
    from presets import models as room
    from presets import models_table

    verdicts = []
    for verdict in room.verify(model or None):
        verdicts.append(verdict)
        say.step("models", models_table.verdict_line(verdict))
    if json:
        say.document([verdict.to_json() for verdict in verdicts])
    return 1 if any(verdict.fault for verdict in verdicts) else 0


@job()
def models_lock(_: Context) -> None:
    """Hold the catalog against the Hub's file lists and lock the checksums it does not know yet."""
    import say
    from presets import models as room

    compared, added = room.lock_all()
    say.step("models", f"{compared} files are as pinned, {added} checksums added to the lock")


@job(
    positional=["reference"], help={"reference": "MODEL/QUANT, MODEL/heads/HEAD or OWNER/REPO@REVISION:PATH"}
)
def models_header(_: Context, reference: str) -> None:
    """Fetch only the headers of remote files and lay hollow files that a plan can be made from."""
    from presets import models_header as headers

    print(headers.fetch(reference))


models_tasks = Collection("models")
models_tasks.add_task(models, name="list", default=True)
for _name, _task in (
    ("fetch", models_fetch),
    ("verify", models_verify),
    ("lock", models_lock),
    ("header", models_header),
):
    models_tasks.add_task(_task, name=_name)
ns.add_collection(models_tasks)


# --- presets ---
PRESET_HELP = "a name (./inv presets) or a YAML file; default: HALOFORGE_PRESET, else what suits this machine"
SET_HELP = "change a setting for this run, KEY=VALUE; may be given several times"


def _chosen_preset(name: str, settings: list[str] | None) -> Any:
    """The preset that is meant, with its settings changed as asked."""
    from errors import BadInput
    from presets import schema

    pairs = [text.partition("=") for text in settings or ()]
    if wrong := [key for key, equals, _ in pairs if not equals]:
        raise BadInput(f"--set {wrong[0]} has no value", hint=f"--set {wrong[0]}=VALUE")
    if not name:
        from compose.choice import default_preset

        name = default_preset()
    return schema.load(name, {key.strip().replace("-", "_"): value for key, _, value in pairs})


@job(help={"json": "print one JSON document"})
def presets(_: Context, json: bool = False) -> None:
    """List the presets and what they are for."""
    import say
    from presets import listing

    found = listing.rows()
    say.document([row.to_json() for row in found]) if json else print(listing.table(found))


@job(
    iterable=["set"],
    help={
        "preset": "a name (./inv presets) or a YAML file; may stand without the flag",
        "set": SET_HELP,
        "json": "print one JSON document",
    },
)
def presets_show(_: Context, preset: str, set: list[str] | None = None, json: bool = False) -> None:
    """Show a preset resolved: every setting, where it differs from the default, and the engine's command."""
    import say
    from presets import listing

    chosen = _chosen_preset(preset, set)
    say.document(listing.resolved(chosen)) if json else print(listing.shown(chosen))


@job(
    help={"write": "write the file that the presets name first", "settings": "print a table of all settings"}
)
def presets_schema(_: Context, write: bool = False, settings: bool = False) -> None:
    """Print the JSON schema of presets, for editors."""
    from paths import replacing
    from presets import listing, schema

    if write:
        with replacing(schema.SCHEMA_FILE) as temporary:
            temporary.write_text(schema.text_schema(), encoding="utf-8")
    print(listing.settings_page().rstrip() if settings else schema.text_schema().rstrip())


@job()
def presets_predict(_: Context) -> None:
    """Write the planner's prediction into every preset whose stated memory differs from it."""
    from presets import predict

    for name, size in predict.refresh().items():
        print(f"{name}: {size} MiB")


preset_tasks = Collection("presets")
preset_tasks.add_task(presets_predict, name="predict")
preset_tasks.add_task(presets, name="list", default=True)
preset_tasks.add_task(presets_show, name="show")
preset_tasks.add_task(presets_schema, name="schema")
ns.add_collection(preset_tasks)


# --- planner ---
PLAN_HELP = {
    "preset": "a preset by name or file (default quality)",
    "gguf": "plan a model file instead: its first shard (hollow or cut will do), MODEL/QUANT of the catalog, "
    "OWNER/REPO@REVISION:PATH or the address of a file on the Hub",
    "draft": "its MTP head or draft model in a file of its own",
    "set": "key=value, a setting to change; may be given several times",
    "free": "plan for a machine with that many GiB of memory available, not for this one",
    "reserve": "GiB to leave to the rest of the system",
    "engine": "engine: a folder of patches/",
    "flavour": "cpu, rocm or vulkan",
    "json": "print one JSON document",
}


@job(iterable=["set"], help=PLAN_HELP)
def plan(
    _: Context,
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    set: list[str] | None = None,
    free: float | None = None,
    reserve: float | None = None,
    engine: str = "",
    flavour: str = "",
    json: bool = False,
) -> int:
    """Say how much memory a start takes, term by term, and whether that fits. Nothing is downloaded."""
    import say
    from presets.planner import ask, show

    request = ask.Request.of(preset, gguf, draft, set or [], free, reserve, engine, flavour)
    found, origin = ask.answer(request)
    if json:
        say.document(found.to_json())
    else:
        print(f"{found.preset}: {origin}", show.text(found, colour=sys.stdout.isatty()), sep="\n")
    return found.exit_code


@job(
    help={
        "csv": "write the table as CSV to this file",
        **{name: PLAN_HELP[name] for name in ("free", "reserve", "engine", "flavour", "json")},
    },
)
def plan_limits(
    _: Context,
    free: float | None = None,
    reserve: float | None = None,
    engine: str = "llama.cpp",
    flavour: str = "rocm",
    csv: str = "",
    json: bool = False,
) -> None:
    """Say how many slots of which context fit, per quant, with and without MTP, beside the seed's figures."""
    import dataclasses
    from pathlib import Path

    import paths
    import say
    from patches import engines
    from presets.planner import ask, limits, terms

    found = limits.cells(engines.load(engine).traits, terms.device(flavour), ask.box(free, reserve))
    if csv:
        with paths.replacing(Path(csv)) as temporary:
            temporary.write_text(limits.csv(found), encoding="utf-8")
        say.step("limits", f"written to {csv}")
    if json:
        say.document([dataclasses.asdict(cell) for cell in found])
    else:
        print(limits.text(found))


@job(
    iterable=["set"], help=PLAN_HELP | {"over": "ub, ctx, np or kv", "plot": "draw it into this .svg or .png"}
)
def plan_sweep(
    _: Context,
    over: str = "ub",
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    set: list[str] | None = None,
    free: float | None = None,
    reserve: float | None = None,
    engine: str = "",
    flavour: str = "",
    plot: str = "",
    json: bool = False,
) -> None:
    """Plan over a range of one setting: what ubatch, context, slots or the cache's type cost."""
    from pathlib import Path

    import say
    from presets.planner import ask, sweep

    asked, _origin = ask.question(
        ask.Request.of(preset, gguf, draft, set or [], free, reserve, engine, flavour)
    )
    points = sweep.over(asked, over)
    if plot:
        say.step("plot", str(sweep.plot(points, over, Path(plot), f"{asked.preset}: memory over {over}")))
    say.document([point.to_json() for point in points]) if json else print(sweep.text(points, over))


@job(
    iterable=["set"],
    help={name: text for name, text in PLAN_HELP.items() if name not in ("free", "reserve")}
    | {"log": "a server's log; - reads standard input"},
)
def plan_compare(
    _: Context,
    log: str,
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    set: list[str] | None = None,
    engine: str = "",
    flavour: str = "",
    json: bool = False,
) -> int:
    """Compare a plan with what a server's log says it took."""
    import say
    from presets.planner import ask, compare

    request = ask.Request.of(preset, gguf, draft, set or [], None, None, engine, flavour)
    found, _origin = ask.answer(request)
    logged = ask.log_of(log)
    lines = compare.lines(found, logged)
    say.document([line.to_json() for line in lines]) if json else print(compare.text(lines, logged))
    return 1 if any(line.holds is False for line in lines) else 0


@job(help={"write": "write docs/planner-error.md", "json": "print one JSON document"})
def plan_errors(_: Context, write: bool = False, json: bool = False) -> None:
    """Compare the planner with what others measured on gfx1151, and say why each miss missed."""
    import dataclasses

    import paths
    import say
    from presets.planner import calibrate

    rows = calibrate.rows()
    if write:
        with paths.replacing(paths.ROOT / "docs" / "planner-error.md") as temporary:
            temporary.write_text(calibrate.document(rows), encoding="utf-8")
        say.step("errors", "docs/planner-error.md written")
    elif json:
        say.document([{**dataclasses.asdict(row), "error": row.error} for row in rows])
    else:
        print(calibrate.document(rows))


@job(iterable=["set"], help={name: PLAN_HELP[name] for name in ("preset", "set", "json")})
def plan_engine(_: Context, preset: str = "demo", set: list[str] | None = None, json: bool = False) -> int:
    """Ask the engine in the image for its own projection and put it in the place of our estimates."""
    import say
    from compose import projection
    from presets import schema
    from presets.planner import ask, show

    asked, told = projection.of_preset(schema.load(preset, ask.pairs(set or [])))
    ours, found = ask.judge(asked), ask.judge(asked, told.terms)
    if json:
        say.document({**found.to_json(), "kept": told.kept, "planned_bytes": ours.total_bytes})
    else:
        say.step("engine", "kept from an earlier time" if told.kept else "asked just now")
        print(show.text(found, colour=sys.stdout.isatty()))
        print(f"planned without the engine: {say.size(ours.total_bytes)}")
    return found.exit_code


plan_tasks = Collection("plan")
plan_tasks.add_task(plan, name="one", default=True)
for _task, _name in (
    (plan_limits, "limits"),
    (plan_sweep, "sweep"),
    (plan_compare, "compare"),
    (plan_errors, "errors"),
    (plan_engine, "engine"),
):
    plan_tasks.add_task(_task, name=_name)
ns.add_collection(plan_tasks)


# --- compose ---
@job(
    iterable=["set"],
    help={
        "preset": PRESET_HELP,
        "set": SET_HELP,
        "out": "folder to write to (default: print)",
        "target": "compose, quadlet or kubernetes",
    },
)
def render(
    _: Context, preset: str = "", set: list[str] | None = None, out: str = "", target: str = "compose"
) -> None:
    """Render the files that run a preset, without starting anything."""
    from compose import targets

    targets.write(_chosen_preset(preset, set), target=target, out=out)


@job(
    iterable=["set"],
    help={
        "preset": PRESET_HELP,
        "set": SET_HELP,
        "install": "let doctor install what the host lacks and start the Docker daemon",
        "jobs": "compile jobs, if an image must be built",
        "json": "print one JSON document",
    },
)
def deploy(
    _: Context,
    preset: str = "",
    set: list[str] | None = None,
    install: bool = False,
    jobs: int = 0,
    json: bool = False,
) -> None:
    """Do what is missing until the preset's server is up, healthy and checked."""
    import say
    from compose import deploy as deploying

    done = deploying.deploy(_chosen_preset(preset, set), install=install, jobs=jobs or None)
    say.document(done.to_json()) if json else print(done.deployment.url)


@job(help={"json": "print one JSON document"})
def status(_: Context, json: bool = False) -> int:
    """Show what runs: health, memory against the plan, slots, speed, drafts kept, restarts."""
    import say
    from compose import status as statuses

    found = statuses.status()
    if json:
        say.document(found.to_json() if found else None)
    else:
        print("\n".join(statuses.lines(found)) if found else "nothing is deployed; ./inv deploy")
    return 0 if found is None or (found.ready and not found.problem) else 1


@job(help={"follow": "go on with each new line", "lines": "how many of the last lines"})
def logs(_: Context, follow: bool = False, lines: int = 100) -> None:
    """Print the engine's log."""
    from compose import status as statuses

    for line in statuses.log(follow=follow, lines=lines):
        print(line, flush=follow)


@job(help={"engine": "also end a Docker daemon that Haloforge started"})
def stop(_: Context, engine: bool = False) -> None:
    """Stop what runs and remove its container; models, images and the way back are kept."""
    from compose import deploy as deploying

    print(deploying.stop(engine=engine) or "nothing was running")


@job()
def rollback(_: Context) -> None:
    """Go back to the deployment before the current one; again goes on to the one before that."""
    from compose import deploy as deploying

    print(deploying.rollback().url)


for _task in (render, deploy, status, logs, stop, rollback):
    ns.add_task(_task)


# --- checks ---
URL_HELP = "root of the server, as in http://127.0.0.1:8080"
KEY_FILE_HELP = "file that holds the API key"
ONLY_HELP = "run only this check; may be given several times"
ACCEPT_HELP = "do not count a skip of this check as a failure; may be given several times"
REPORT_HELP = {"json": "print one JSON document", "junit": "write JUnit XML to this file"}


def _shown(report: Any, json: bool, junit: str) -> int:
    """Print a report of checks, write its JUnit file, and give its exit code."""
    from pathlib import Path

    import say

    if junit:
        report.write_junit(Path(junit))
    say.document(report.to_json()) if json else print(report.table())
    return 0 if report.passed else 1


def _key(key_file: str) -> str | None:
    """The API key in a file, None where no file is named."""
    from checks.keys import read

    return read(key_file) if key_file else None


@job(
    iterable=["only", "accept"],
    help={
        "url": URL_HELP, "key-file": KEY_FILE_HELP, "only": ONLY_HELP, "accept": ACCEPT_HELP,
        "answer": "pattern that the chat answer must contain", **REPORT_HELP,
    },
)  # fmt: skip
def smoke(
    _: Context,
    url: str = "",
    key_file: str = "",
    answer: str = "",
    only: list[str] | None = None,
    accept: list[str] | None = None,
    json: bool = False,
    junit: str = "",
) -> int:
    """Check in seconds that a server is up, is what was asked for, and answers right."""
    from pathlib import Path

    from checks import smoke as checks_smoke

    if url:
        expect = checks_smoke.Expectation(answer=answer or None)
        key, keys = _key(key_file), Path(key_file) if key_file else None
    else:
        url, key, keys, expect = _deployed(answer)
    report = checks_smoke.run(
        url, key=key, expect=expect, only=only or (), accept=accept or (), key_file=keys
    )  # fmt: skip
    return _shown(report, json, junit)


def _deployed(answer: str = "") -> tuple[str, str | None, Any, Any]:
    """URL, key, key file and expectation of the deployment that is up."""
    from dataclasses import replace

    from compose import expectation, record
    from errors import BadInput

    name = record.journal().current
    if name is None:
        raise BadInput("nothing is deployed here", hint="./inv deploy, or name a server with --url")
    deployment = record.load(name)
    expect = expectation.expected(deployment)
    expect = replace(expect, answer=answer) if answer else expect
    return deployment.url, record.api_key(deployment), record.key_file(deployment), expect


@job(
    iterable=["only", "accept"],
    help={
        "url": URL_HELP + "; left out, the deployment is checked",
        "key-file": KEY_FILE_HELP,
        "image": "start servers from this image instead",
        "programs": "start servers from the programs in this folder instead",
        "model": "model file for the servers that are started",
        "draft": "its draft head, if that is a file of its own",
        "embedded": "the draft head is inside the model",
        "device": "what must hold the weights, as ROCm0; left out, the CPU",
        "extra": "further llama-server arguments, as one word",
        "options": "further docker run arguments, as one word",
        "only": "run only this check or group of checks; may be given several times",
        "accept": "do not count a skip of this check or group as a failure, 'starting' for all that need"
        " to start servers; may be given several times",
        "quick": "leave out the slower checks, and make fewer rounds",
        "keep": "servers that may run at the same time; 1 for a model that fits only once",
        **REPORT_HELP,
    },
)
def check(
    _: Context,
    url: str = "",
    key_file: str = "",
    image: str = "",
    programs: str = "",
    model: str = "",
    draft: str = "",
    embedded: bool = False,
    device: str = "",
    extra: str = "",
    options: str = "",
    only: list[str] | None = None,
    accept: list[str] | None = None,
    quick: bool = False,
    keep: int = 2,
    json: bool = False,
    junit: str = "",
) -> int:
    """Tell a wrong engine from a right one: cuts, caches, slots, speculation and device change no answer."""
    import say
    from checks import subject

    if not (url or image or programs):
        deployed = _deployed()
        url, key_file = deployed[0], str(deployed[2] or "")
    chosen = subject.Subject(
        url=url, key_file=key_file, image=image, programs=programs, model=model, draft=draft,
        embedded=embedded, device=device, extra=extra, options=options, quick=quick, keep=keep,
    )  # fmt: skip
    report = subject.run(
        chosen,
        only=only or (),
        accept=accept or (),
        on_result=lambda result: say.step(
            "check", f"{result.id}: {result.outcome.value} ({result.seconds:.1f} s)"
        ),
    )
    return _shown(report, json, junit)


@job(
    iterable=["only"],
    help={
        "only": "run only this fault; may be given several times",
        "runs": "how often each fault must be caught",
        "clean": "how often the engine without faults must pass",
        "programs": "take host builds from this folder, one subfolder per fault and one named clean",
        "out": "write the table to this file, as Markdown",
        "json": "print one JSON document",
    },
)
def check_faults(
    _: Context,
    only: list[str] | None = None,
    runs: int = 3,
    clean: int = 1,
    programs: str = "",
    out: str = "",
    json: bool = False,
) -> int:
    """Build every planted fault and see that the checks catch it, each time, by the right name."""
    from pathlib import Path

    import say
    from tests import faults

    folder = Path(programs).absolute() if programs else None
    table = faults.run(only=only or (), runs=runs, clean=clean, programs=folder)
    if out:
        faults.write(table, Path(out))
    say.document(table.to_json()) if json else print(table.text())
    return 0 if table.good else 1


@job(help={"json": "print one JSON document"})
def check_list(_: Context, json: bool = False) -> None:
    """List the checks: what each proves, when it passes, and what it would have caught."""
    import say
    from checks import suite

    say.document(suite.listed()) if json else print(suite.listed_text())


check_tasks = Collection("check")
check_tasks.add_task(check, name="run", default=True)
check_tasks.add_task(check_faults, name="faults")
check_tasks.add_task(check_list, name="list")
ns.add_task(smoke)
ns.add_collection(check_tasks)


# --- bench ---
BENCH_HELP = {
    "url": "measure the server that runs at this URL instead of starting one",
    "key-file": KEY_FILE_HELP,
    "preset": "preset to start (default demo); with --url: what must be behind it",
    "gguf": "model file instead of a preset",
    "draft": "its draft head",
    "image": "image of ours to run (default: the one deploy would take)",
    "program": "folder with llama-server of this host, instead of an image",
    "set": SET_HELP,
    "quick": "few and short points: minutes instead of hours",
    "again": "measure points again that are stored already",
    "json": "print one JSON document",
}


def _bench_choice(given: dict[str, Any]) -> Any:
    """The bench options that were given, as the room takes them."""
    from bench.run import Choice, overrides

    names = ("url", "preset", "gguf", "draft", "image", "program")
    picked = {name: given.get(name, "") for name in names}
    return Choice(key=_key(given.get("key_file", "")), overrides=overrides(given["set"] or []), **picked)


def _bench_sweep(name: str, purpose: str) -> Any:
    """The task of one sweep."""

    def body(
        _: Context,
        url: str = "",
        key_file: str = "",
        preset: str = "",
        gguf: str = "",
        draft: str = "",
        image: str = "",
        program: str = "",
        set: list[str] | None = None,
        quick: bool = False,
        again: bool = False,
        json: bool = False,
    ) -> int:
        given = dict(locals())
        import say
        from bench import run, show

        points = run.measure(name, run.pick(_bench_choice(given)), quick=quick, again=again)
        say.document([p.model_dump() for p in points]) if json else print(show.table(name, points))
        return run.exit_code(points)

    body.__name__ = f"bench_{name}"
    body.__doc__ = purpose
    return job(iterable=["set"], help=BENCH_HELP)(body)


@job(
    iterable=["set", "head"],
    help={
        **{name: BENCH_HELP[name] for name in BENCH_HELP if name not in ("url", "key-file")},
        "head": "another head to measure at depth, NAME=FILE; may be given several times",
        "synthetic": "accept drafts by dice with this chance (0 to 1), for models without a trained head",
    },
)
def bench_mtp(
    _: Context,
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    image: str = "",
    program: str = "",
    set: list[str] | None = None,
    head: list[str] | None = None,
    synthetic: float = -1.0,
    quick: bool = False,
    again: bool = False,
    json: bool = False,
) -> int:
    """Measure what drafting gains by draft length, threshold and kind of text, and propose a setting."""
    given = dict(locals())
    import say
    from bench import mtp, run, show

    subject = run.pick(_bench_choice(given))
    options = {"heads": run.heads(head or []), "synthetic": synthetic if synthetic >= 0 else None}
    points = run.measure("mtp", subject, quick=quick, again=again, **options)
    proposal = mtp.propose(points)
    if json:
        say.document({"points": [p.model_dump() for p in points], "proposal": str(proposal)})
    else:
        print(show.table("mtp", points), f"best: {proposal}", sep="\n")
    return run.exit_code(points)


@job(
    iterable=["set"],
    help={
        "a": "the known side: a preset, image:REF, program:DIR or a URL",
        "b": "the side in question, in the same form",
        "rounds": "pairs that count (default 7)",
        **{name: BENCH_HELP[name] for name in ("preset", "gguf", "draft", "set", "quick", "json")},
    },
)
def bench_compare(
    _: Context,
    a: str,
    b: str,
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    set: list[str] | None = None,
    rounds: int = 7,
    quick: bool = False,
    json: bool = False,
) -> int:
    """Measure two images, presets or servers in turn, A B A B; ends with 1 when B is 3 % slower or more."""
    given = dict(locals())
    import say
    from bench import compare, run

    compare.require_rounds(rounds)
    base = _bench_choice(given)
    first, second = run.compared(run.side(a, base), run.side(b, base))
    found = compare.compare(first, second, rounds=rounds, quick=quick)
    say.document(found.to_json()) if json else print("\n".join(found.lines()))
    return 1 if found.regressions else 0


@job(help={"out": "folder to write to (default: beside the results)", "json": "print one JSON document"})
def bench_report(_: Context, out: str = "", json: bool = False) -> None:
    """Write one HTML page, its plots as files, and the data, from stored results and published figures."""
    from pathlib import Path

    import say
    from bench import report

    written = report.write(Path(out) if out else None)
    say.document(written.to_json()) if json else print(written.page)


@job(help={"json": "print one JSON document"})
def bench_ceiling(_: Context, json: bool = False) -> int:
    """Show how many streamed tokens a second the load generator can take on one core."""
    import say
    from bench import ceiling

    found = ceiling.measure()
    ceiling.keep(found)
    if json:
        say.document([one.to_json() for one in found])
    else:
        for one in found:
            print(f"{one.streams:>3} streams: {one.tokens_per_core_second:.0f} tokens/s per core")
    return 0 if min(one.tokens_per_core_second for one in found) >= ceiling.GOAL_TPS else 1


@job(
    iterable=["set"],
    help={
        "pair": "trunk of a model with a recurrent state, for what the preset cannot show",
        "pair-head": "the pair's draft head",
        **{name: BENCH_HELP[name] for name in BENCH_HELP if name not in ("url", "key-file")},
    },
)
def bench_all(
    _: Context,
    preset: str = "",
    gguf: str = "",
    draft: str = "",
    image: str = "",
    program: str = "",
    pair: str = "",
    pair_head: str = "",
    set: list[str] | None = None,
    quick: bool = False,
    again: bool = False,
    json: bool = False,
) -> int:
    """Run every sweep and write the report. Without a pair, one is made by the makers of the tests."""
    given = dict(locals())
    import say
    from bench import ceiling, report, run, show

    chosen = _bench_choice(given)
    ceiling.keep(ceiling.measure())
    found = run.everything(run.pick(chosen), run.pair(chosen, pair, pair_head), quick=quick, again=again)
    written = report.write()
    if json:
        points = {name: [p.model_dump() for p in points] for name, points in found.items()}
        say.document({"points": points, "report": written.to_json()})
    else:
        print(*(show.table(name, points) for name, points in found.items()), written.page, sep="\n\n")
    return max((run.exit_code(points) for points in found.values()), default=0)


@job(
    iterable=["only"],
    help={
        "only": "startup, deploy or build; may be given several times (default: all, about half an hour)",
        "preset": "what to deploy (default demo)",
        "json": "print one JSON document",
    },
)
def bench_overhead(
    _: Context, only: list[str] | None = None, preset: str = "demo", json: bool = False
) -> None:
    """Measure what Haloforge adds to the bare tools: start-up, build, rebuild, deploy, size; as ratios."""
    import say
    from bench import overhead

    rows = overhead.measure(only or [], preset)
    say.document([row.to_json() for row in rows]) if json else print(overhead.table(rows))


bench_tasks = Collection("bench")
for _name, _purpose in (
    ("ubatch", "Measure compute buffer, prompt and decode speed and waiting by ubatch, beside the plan."),
    ("slots", "Measure what 1, 2, 4, 8 and 16 users at once get, with short and long prompts."),
    ("cache", "Measure how much of a conversation comes from the cache, by checkpoints, sessions and slots."),
    ("load", "Measure cold and warm starts to healthy, bytes read, memory taken and given back."),
):
    bench_tasks.add_task(_bench_sweep(_name, _purpose), name=_name)
for _task, _name in (
    (bench_mtp, "mtp"),
    (bench_compare, "compare"),
    (bench_report, "report"),
    (bench_ceiling, "ceiling"),
    (bench_overhead, "overhead"),
    (bench_all, "all"),
):
    bench_tasks.add_task(_task, name=_name)
ns.add_collection(bench_tasks)
