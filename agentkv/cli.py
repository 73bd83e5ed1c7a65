"""The command line: `agentkv run` and its sibling commands.

Commands import what they need when they run, so that help and mistakes in options answer at once.
"""

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.text import Text
from typer.core import TyperGroup

from agentkv import options
from agentkv.bench import bench
from agentkv.defaults import POLICY
from agentkv.terminal import Terminal, plain

if TYPE_CHECKING:
    from agentkv.trace import Step


class _Commands(TyperGroup):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        options.require_text(args)
        return super().parse_args(ctx, args)


class _TaskCommands(TyperGroup):
    """`agentkv tasks SUITE` stands for `agentkv tasks list SUITE`."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, *self.get_help_option_names(ctx)):
            args = ["list", *args]
        return super().parse_args(ctx, args)


cli = typer.Typer(
    name="agentkv",
    cls=_Commands,
    help="Web agents on local models whose key-value cache stays small.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)
cli.add_typer(bench, name="bench")
tasks = typer.Typer(
    cls=_TaskCommands,
    help="List the tasks of a suite: `agentkv tasks SUITE` stands for `agentkv tasks list SUITE`. "
    "Write and check a file of sites and tasks of your own.",
    rich_markup_mode=None,
)
cli.add_typer(tasks, name="tasks")


@cli.callback(invoke_without_command=True)
def _main(
    version: Annotated[bool, typer.Option("--version", help="Print the version and stop.")] = False,
) -> None:
    if version:
        import importlib.metadata

        typer.echo(importlib.metadata.version("agentkv-web"))
        raise typer.Exit


@cli.command()
def run(
    context: typer.Context,
    tasks: options.Suite = "vwa75",
    policies: options.Policies = None,
    model: options.Model = "nano",
    seeds: options.Seeds = "0",
    world_seed: options.World = 75,
    budget: options.RunBudget = None,
    chunk: options.Chunk = None,
    limit: options.Limit = None,
    workers: options.Workers = None,
    out: options.Out = None,
    fresh: options.Fresh = False,
    retry_failures: options.Retry = False,
    retries: options.Retries = 1,
    checkpoint: options.Checkpoint = 60.0,
    allow_unreset: options.AllowUnreset = False,
    decoding: options.Decoding = "constrained",
    temperature: options.Temperature = 0.0,
    deterministic: options.Deterministic = False,
    max_steps: options.Steps = None,
    max_new_tokens: options.ReplyTokens = 512,
    thinking: options.Thinking = 0,
    observation_tokens: options.PageTokens = 3840,
    observations: options.Observations = "whole",
    pins: options.Pins = True,
    timeout: options.Timeout = 900.0,
    step_timeout: options.StepTimeout = 300.0,
    scoring: options.Scoring = "compat",
    judge: options.Judge = None,
    judge_model: options.JudgeModel = None,
    strict: options.Strict = False,
    ocr: options.Ocr = True,
    screenshots: options.Screenshots = True,
    playwright_traces: options.PlaywrightTraces = False,
    profile: options.Profile = False,
    site: options.Sites = None,
    config: options.Config = None,
    device: options.Device = "auto",
    browser_path: options.Browser = None,
    executor: options.Executor = "local",
    ray_address: options.RayAddress = None,
) -> None:
    """Run tasks under several cache policies, compare them, and write a report.

    The same command continues a run that was stopped.
    """
    with options.for_people("interrupted; run the same command again to continue") as console:
        from agentkv_tasks.run import command

        options.require("--decoding", decoding, ("constrained", "free"))
        options.require("--scoring", scoring, ("compat", "mended"))
        options.require("--observations", observations, ("whole", "changes"))
        options.require("--executor", executor, ("local", "ray"))
        options.require_seconds("--step-timeout", step_timeout)
        given: dict[str, Any] = {
            "tasks": tasks,
            "model": model,
            "seeds": options.read_numbers("--seeds", seeds),
            "world_seed": world_seed,
            "budget": options.read_budget(budget),
            "chunk": chunk,
            "limit": limit,
            "workers": workers,
            "decoding": decoding,
            "temperature": temperature,
            "deterministic": deterministic,
            "max_steps": max_steps,
            "max_new_tokens": max_new_tokens,
            "thinking": thinking,
            "observation_tokens": observation_tokens,
            "observations": observations,
            "pins": pins,
            "timeout_s": timeout,
            "strict": strict,
            "ocr": ocr,
            "retries": retries,
            "checkpoint_s": checkpoint,
            "screenshots": screenshots,
            "playwright_traces": playwright_traces,
            "profile": profile,
            "device": device,
            "browser_path": browser_path,
        }
        if config is not None:
            given = options.typed_only(given, context)
        if policies:
            given["policies"] = tuple(options.split("--policies", policies))
        prepared = command.prepare(
            command.read_run(config, out, options.without_none(given)),
            sites=options.sites_elsewhere(site or []),
            scoring="mended" if scoring == "mended" else "compat",
            step_timeout_s=step_timeout,
            fresh=fresh,
            retry_failures=retry_failures,
            allow_unreset=allow_unreset,
            judge=command.read_judge(judge, judge_model),
            executor="ray" if executor == "ray" else "local",
            ray_address=ray_address,
        )
        command.run(prepared, console)


@cli.command()
def report(
    folders: options.Runs,
    markdown: options.Markdown = False,
    against: options.Against = None,
    out: options.ReportOut = None,
) -> None:
    """Print the table of a run, or of several pooled runs, and rewrite report.html."""
    with options.for_people() as console:
        from agentkv.advice import advice_lines
        from agentkv_tasks.report.pool import pooled, read_runs
        from agentkv_tasks.report.summary import summarize
        from agentkv_tasks.report.tables import markdown as as_markdown
        from agentkv_tasks.report.tables import policy_lines
        from agentkv_tasks.report.write import write_report
        from agentkv_tasks.results import mixed_versions
        from agentkv_tasks.run.display import failure_lines, result_table

        others = None if against is None else options.split("--against", against)
        rows = [row for run in pooled(read_runs(folders)).values() for row in run]
        if markdown:
            typer.echo(plain(as_markdown(policy_lines(summarize(rows), others))))
            return
        path = write_report(*folders, out=out, against=others)
        console.print(result_table(rows))
        advice = advice_lines([row.status for row in rows])
        for line in [*failure_lines(rows), *advice, *mixed_versions(rows)]:
            console.print(Text(line, style="yellow"), soft_wrap=True)
        console.print(Text(f"report: {path}"), soft_wrap=True)


@cli.command()
def policies(
    name: Annotated[str | None, typer.Argument(help="Policy to explain.")] = None,
    long: Annotated[
        bool, typer.Option("--long", help="Print parts, parameters and source of each policy.")
    ] = False,
) -> None:
    """List the cache policies in a line each, or explain one policy."""
    with options.for_people() as console:
        from agentkv.listing import print_parts, print_policies, print_policy

        if name is None:
            (print_parts if long else print_policies)(console)
        else:
            print_policy(console, name)


@tasks.command("list")
def list_tasks(
    suite: Annotated[
        str,
        typer.Argument(
            help="Suite, JSON file or folder, TOML file of sites, or official tasks "
            "(visualwebarena:FILE, vwa541:FILE, vwa75-live:FILE)."
        ),
    ] = "vwa75",
    world_seed: options.World = 75,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON in VisualWebArena's schema.")
    ] = False,
) -> None:
    """List the tasks of a suite."""
    with options.for_people() as console:
        from agentkv_tasks.run.display import task_table
        from agentkv_tasks.suites import SUITES, load_tasks

        found, name = load_tasks(suite, world_seed=world_seed)
        if as_json:
            typer.echo(json.dumps([task.model_dump(mode="json") for task in found], indent=2))
            return
        console.print(task_table(found))
        about = SUITES[suite].about if suite in SUITES else f"{len(found)} tasks"
        where = f" in world {world_seed}" if suite in SUITES else ""
        console.print(Text(f"{name}{where}: {about}"), soft_wrap=True)


@tasks.command()
def check(
    file: Annotated[Path, typer.Argument(help="TOML file of sites.", metavar="FILE")],
    browser_path: options.Browser = None,
) -> None:
    """Try the sites, log-ins and tasks of a file, and print a line for each check.

    The sites are started and reset. Every solution is played and must pass; an agent that stops at
    once must not, before the solution and after it and a reset. The exit code is 1 if a check
    failed.
    """
    with options.for_people() as console:
        from agentkv_tasks.own_sites.site_file import read_site_file
        from agentkv_tasks.run.check import examine
        from agentkv_tasks.run.preflight import find_browser

        sites_of_file = read_site_file(file)
        find_browser(browser_path)
        colors = {"ok": "green", "failed": "red", "skipped": "yellow"}
        has_failed = False
        for finding in examine(sites_of_file, browser_path=browser_path):
            has_failed |= finding.verdict == "failed"
            line = Text(f"{finding.verdict:<8}", style=colors[finding.verdict])
            console.print(line + Text(f"{finding.name:<24} {finding.detail}"), soft_wrap=True)
        raise typer.Exit(1 if has_failed else 0)


@tasks.command()
def new(
    folder: Annotated[Path, typer.Argument(help="Folder of the files.", metavar="DIR")],
) -> None:
    """Write a first file of sites with tasks, which `agentkv tasks check` passes.

    Its site comes with agentkv. Nothing is overwritten.
    """
    with options.for_people() as console:
        from agentkv_tasks.own_sites.first_files import SITES, write_first

        for path in write_first(folder):
            console.print(Text(str(path)), soft_wrap=True)
        console.print(Text(f"check them: agentkv tasks check {folder / SITES}"), soft_wrap=True)


@cli.command()
def sites(
    world_seed: options.World = 75,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 takes a free one.")] = 8075,
) -> None:
    """Serve the embedded sites for your own browser, until Ctrl-C."""
    with options.for_people("stopped; changes are lost") as console:
        from agentkv_env.sites.server import Server
        from agentkv_env.sites.world import World

        with Server(World(world_seed), port) as server:
            for name, origin in server.origins.items():
                console.print(f"{name:<12} {origin}/", soft_wrap=True)
            console.print("Press Ctrl-C to stop; changes are lost.", style="dim")
            while True:
                time.sleep(3600)


@cli.command()
def act(
    goal: Annotated[str, typer.Option(help="Task in plain words.")],
    url: Annotated[
        str | None,
        typer.Option(
            help="Start page; the agent stays on its host. With --connect it may be left out: then "
            "the agent works in the only tab that shows a web page."
        ),
    ] = None,
    policy: Annotated[str, typer.Option(help="Cache policy, see `agentkv policies`.")] = POLICY,
    model: options.Model = "nano",
    budget: options.RunBudget = None,
    decoding: options.Decoding = "constrained",
    observations: options.Observations = "whole",
    pins: options.Pins = True,
    thinking: options.Thinking = 0,
    temperature: options.Temperature = 0.0,
    observation_tokens: options.PageTokens = 3840,
    max_steps: Annotated[int, typer.Option(min=1, help="Maximum number of actions.")] = 30,
    confirm: Annotated[
        bool,
        typer.Option(
            "--confirm",
            help="Ask before each action that may change something: y, n, a (all) or q (quit). The "
            "agent is told of a no and goes on.",
        ),
    ] = False,
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Look around only: end before the first action that may change something, and "
            "print it.",
        ),
    ] = False,
    visible: Annotated[
        bool, typer.Option("--show", help="Show the browser's window, which needs a display.")
    ] = False,
    connect: Annotated[
        str | None,
        typer.Option(
            help="Work in a running Chrome, at its debugging port on this machine: "
            "http://localhost:9222. Its tabs stay open."
        ),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print a line of JSON for each step and for the end.")
    ] = False,
    out: Annotated[
        Path | None, typer.Option(help="Folder for the trace and a screenshot of each page.")
    ] = None,
    browser_path: options.Browser = None,
    secret: options.NamedSecret = None,
    dialogs: options.Dialogs = "ask",
) -> None:
    """Run the agent on one page with one goal, and print its actions.

    What it is doing is on stderr. The exit code is 0 if the agent stopped by itself, or a dry run
    came to an action, and 1 if the episode ended otherwise. Nothing checks whether the goal was
    reached.
    """
    with options.for_people() as console:
        from agentkv.advice import advice_on_model
        from agentkv.build import ignored_budget
        from agentkv.config import read_settings
        from agentkv.status_line import StatusLine
        from agentkv_tasks.run.act import Place, run_goal
        from agentkv_tasks.run.act_terminal import ActTerminal

        options.require("--decoding", decoding, ("constrained", "free"))
        options.require("--observations", observations, ("whole", "changes"))
        options.exclude({"--confirm": confirm, "--dry-run": dry_run})
        options.exclude({"--show": visible, "--connect": connect is not None})
        if url is None and connect is None:
            raise options.OptionError("give the start page with --url, or a Chrome with --connect")
        given: dict[str, Any] = {
            "model": model,
            "policies": (policy,),
            "budget": options.read_budget(budget),
            "decoding": decoding,
            "observations": observations,
            "pins": pins,
            "thinking": thinking,
            "temperature": temperature,
            "observation_tokens": observation_tokens,
            "browser_path": browser_path,
        }
        settings = read_settings(**options.without_none(given))
        place = Place(
            url,
            connect,
            visible,
            options.read_secrets(secret or (), options.host_of_page(url or "")),
            options.read_dialogs(dialogs),
        )
        errors = Terminal(stderr=True)
        with StatusLine(errors) as status:
            terminal = ActTerminal(
                console,
                errors,
                status,
                brake="confirm" if confirm else "dry-run" if dry_run else "none",
                as_json=as_json,
            )
            options.note(ignored_budget(settings))
            options.note(advice_on_model(model, url or ""))
            episode = run_goal(
                settings,
                place,
                goal,
                max_steps=max_steps,
                on_step=terminal.step,
                out=out,
                judge=terminal.judge if confirm or dry_run else None,
                on_progress=status,
            )
        terminal.end(episode)
        if not terminal.succeeded(episode):
            raise typer.Exit(1)


@cli.command()
def serve(
    model: options.Model = "nano",
    policies: Annotated[
        str | None,
        typer.Option(
            help="Cache policies, separated by commas: requests may choose among them, and the "
            f"first is the default. [default: {POLICY}]"
        ),
    ] = None,
    budget: options.RunBudget = None,
    chunk: options.Chunk = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on. Beyond this machine, keys are needed.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port to listen on.")] = 8080,
    name: Annotated[
        str | None,
        typer.Option(help="Name of the model in requests. [default: the last part of --model]"),
    ] = None,
    api_keys: Annotated[
        Path | None,
        typer.Option(
            help="File of API keys, one per line, which only its owner may read. The variable "
            "AGENTKV_API_KEYS may hold keys as well, separated by commas."
        ),
    ] = None,
    allow_host: Annotated[
        list[str] | None,
        typer.Option(help="Further name by which the server may be addressed. Repeatable."),
    ] = None,
    memory: Annotated[
        str | None,
        typer.Option(
            help="Bytes of all sessions in memory, such as 4GiB; the least recently used ones go "
            "to disk. [default: a quarter of the device's]"
        ),
    ] = None,
    store: Annotated[
        Path | None,
        typer.Option(
            help="Folder for sessions on disk; the next server finds them there. [default: a "
            "temporary folder]"
        ),
    ] = None,
    snapshots: Annotated[
        int,
        typer.Option(
            min=0, help="Earlier states kept per session, to which a changed conversation returns."
        ),
    ] = 4,
    any_model: Annotated[
        bool,
        typer.Option(
            "--any-model",
            help="Answer requests for any model's name with this model, for clients whose name "
            "cannot be set.",
        ),
    ] = False,
    max_tokens: Annotated[int, typer.Option(min=1, help="Maximum tokens per reply.")] = 4096,
    parallel: Annotated[int, typer.Option(min=1, help="Replies at a time, in one batch.")] = 16,
    queue: Annotated[int, typer.Option(min=0, help="Requests that may wait.")] = 64,
    timeout: Annotated[float, typer.Option(min=1, help="Maximum seconds per request.")] = 600.0,
    device: options.Device = "auto",
) -> None:
    """Serve a model to programs that speak OpenAI's protocol, until Ctrl-C.

    Every conversation keeps its cache from one request to the next, so that the model reads only
    what is new.
    """
    kept = f"sessions stay in {store}" if store else "sessions are lost without --store"
    with options.for_people(f"stopped; {kept}") as console:
        from agentkv.build import ignored_budget
        from agentkv.config import read_settings
        from agentkv.serve.command import ServeSettings, check, read_keys
        from agentkv.serve.front import run_server
        from agentkv.serve.job import Limits

        given: dict[str, Any] = {
            "model": model,
            "policies": tuple(options.split("--policies", policies or POLICY)),
            "budget": options.read_budget(budget),
            "chunk": chunk,
            "device": device,
        }
        run_settings = read_settings(**options.without_none(given))
        settings = ServeSettings(
            host=host,
            port=port,
            name=name,
            memory=memory,
            folder=store,
            snapshots=snapshots,
            limits=Limits(max_tokens, parallel, queue),
            request_s=timeout,
            hosts=tuple(allow_host or ()),
            takes_any_model=any_model,
        )
        keys = read_keys(api_keys)
        check(settings, keys)
        options.note(ignored_budget(run_settings))
        errors = Terminal(stderr=True)
        run_server(run_settings, settings, keys, console=console, errors=errors, kept=kept)


@cli.command()
def mcp(
    hosts: Annotated[
        str,
        typer.Option(
            help="The only hosts that pages may reach, separated by commas: shop.example, "
            "127.0.0.1:8080."
        ),
    ],
    tokens: Annotated[
        int, typer.Option(min=64, help="Maximum tokens of a page, estimated by its bytes.")
    ] = 4000,
    ocr: options.Ocr = True,
    browser_path: options.Browser = None,
    files: Annotated[
        list[Path] | None,
        typer.Option(
            help="File that may be uploaded to pages, or folder of such files; may be repeated."
        ),
    ] = None,
    secret: options.NamedSecret = None,
    dialogs: options.Dialogs = "ask",
) -> None:
    """Serve web pages as tools over the Model Context Protocol, on standard input and output."""
    with options.for_people("stopped"):
        from agentkv.adapters.mcp_server import mcp_server

        executable = None if browser_path is None else str(browser_path)
        names = options.read_hosts("--hosts", hosts)
        server = mcp_server(
            names,
            tokens=tokens,
            ocr=ocr,
            executable=executable,
            files=files or (),
            secrets=options.read_secrets(secret or (), names),
            dialogs=options.read_dialogs(dialogs),
        )
        server.run("stdio")


@cli.command()
def calibrate(
    folders: Annotated[
        list[Path] | None,
        typer.Argument(help="Folders (--out) of runs of the model.", metavar="[DIR]..."),
    ] = None,
    text: Annotated[Path | None, typer.Option(help="Text file to read instead of runs.")] = None,
    fit: Annotated[
        str,
        typer.Option(
            help="looks: threshold, stretch and blocks of looks; weights: threshold and weights of "
            "the confidence; layers: shares of the first and the last layer."
        ),
    ] = "looks",
    policy: Annotated[
        str | None,
        typer.Option(
            help="Named policy that evicts. [default: lookback; for weights conf-kv-int8]"
        ),
    ] = None,
    share: Annotated[
        float,
        typer.Option(help="Wanted share of the written tokens that look back, or are unsure."),
    ] = 0.1,
    model: options.Model = "nano",
    budget: options.RunBudget = None,
    chunk: options.Chunk = None,
    pins: options.Pins = True,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Number of episodes, the longest ones.")
    ] = None,
    threads: Annotated[int | None, typer.Option(min=1, help="Threads of torch.")] = None,
    device: options.Device = "auto",
    out: Annotated[
        Path | None, typer.Option(help="File of the policy. [default: FIT.toml]")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Overwrite --out.")] = False,
) -> None:
    """Fit a policy to a model, and write it to a file.

    The model reads recorded episodes, or a text, under several candidates with the same budget.
    With looks and weights, each gets the threshold of confidence at which the wanted share of
    tokens looks back, or keeps the loose budget. The candidate that predicts what was written best
    is written to --out, which stands for a policy's name in other commands.
    """
    with options.for_people() as console:
        from agentkv.config import read_settings
        from agentkv_tasks.calibrate.calibrate import Calibration
        from agentkv_tasks.calibrate.calibrate import calibrate as run_calibration

        given: dict[str, Any] = {
            "model": model,
            "policies": (policy or ("conf-kv-int8" if fit == "weights" else "lookback"),),
            "budget": options.read_budget(budget),
            "chunk": chunk,
            "pins": pins,
            "device": device,
        }
        run_calibration(
            Calibration(
                settings=read_settings(**options.without_none(given)),
                fit=fit,
                share=share,
                runs=tuple(folders or ()),
                text=text,
                limit=limit,
                threads=threads,
                out=out or Path(f"{fit}.toml"),
                fresh=fresh,
            ),
            console,
        )


@cli.command()
def show(
    place: Annotated[
        Path, typer.Argument(help="Folder (--out) of a run, or a trace.", metavar="DIR")
    ],
    task: Annotated[
        str | None,
        typer.Argument(
            help="Task id, or beginning of the trace's name, such as 012-full-0. Without it, all "
            "episodes are listed."
        ),
    ] = None,
    policy: Annotated[
        str | None, typer.Option(help="Policy of the episode, if several have the task.")
    ] = None,
    step: Annotated[
        int | None,
        typer.Option(min=1, help="Show this step whole: its page with what was forgotten of it."),
    ] = None,
    against: Annotated[
        str | None,
        typer.Option(
            help="Compare with the task's episode under this policy, or with this trace's name."
        ),
    ] = None,
) -> None:
    """Show recorded episodes: what they read, did and forgot, step by step."""
    with options.for_people() as console:
        from agentkv_tasks import show as shown

        episodes = shown.find_episodes(place)
        if task is None and len(episodes) > 1:
            if step is not None or against is not None:
                raise shown.ShowError("--step and --against are about one task; give its number")
            shown.print_episodes(console, shown.of_policy(episodes, policy))
            return
        episode = episodes[0] if task is None else shown.find_episode(episodes, task, policy)
        if against is not None:
            shown.print_against(console, episode, shown.find_other(episodes, episode, against))
        elif step is not None:
            shown.print_step(console, episode, step)
        else:
            shown.print_episode(console, episode)


@cli.command()
def replay(
    place: Annotated[
        Path, typer.Argument(help="Folder (--out) of a run, or a trace.", metavar="DIR")
    ],
    key: Annotated[
        str | None, typer.Argument(help="Beginning of the trace's name, such as 012-full-0.")
    ] = None,
) -> None:
    """Replay a recorded episode without its model, and score it again."""
    with options.for_people() as console:
        from agentkv_tasks.run.act_terminal import print_step
        from agentkv_tasks.run.replay import find_trace, has_masks, page_difference
        from agentkv_tasks.run.replay import replay as replay_episode

        different: list[int] = []

        def compare(before: "Step", now: "Step") -> None:
            print_step(console, now)
            if (before.url, before.error) != (now.url, now.error):
                line = f"    was: {before.url} {before.error}"
                console.print(Text(line, style="yellow"), soft_wrap=True)
            difference = page_difference(before.observation, now.observation)
            if not difference:
                return
            different.append(now.index + 1)
            line = f"    the page of step {now.index + 1} differs from the recorded one"
            console.print(Text(line, style="yellow"), soft_wrap=True)
            for line in difference if len(different) == 1 else ():
                console.print(Text(f"      {line}"), soft_wrap=True)

        trace, episode, score = replay_episode(find_trace(place, key), on_step=compare)
        if has_masks(trace):
            note = "the trace holds no secrets; *** was typed in their place"
            console.print(Text(note, style="yellow"), soft_wrap=True)
        value = "none" if score is None else f"{score.value:g}"
        reason = f" ({score.reason})" if score is not None and score.reason else ""
        console.print(Text(f"{episode.status}, score {value}{reason}"), soft_wrap=True)
        if different:
            steps = ", ".join(map(str, different))
            many = "s" * (len(different) > 1)
            console.print(Text(f"the page differed at step{many} {steps}"), soft_wrap=True)


@cli.command()
def plan(
    model: Annotated[str, typer.Argument(help="nano, a folder or a hub id.")] = "nano",
    tokens: Annotated[
        int, typer.Option(min=1, help="Tokens that an episode or a conversation reads and writes.")
    ] = 32_768,
    policies: options.Policies = None,
    budget: options.RunBudget = None,
    chunk: options.Chunk = None,
    memory: Annotated[
        str | None,
        typer.Option(help="Memory for weights and cache, such as 24GiB. [default: the device's]"),
    ] = None,
    dtype: Annotated[
        str, typer.Option(help="Dtype of the weights: auto, float32, bfloat16 or float16.")
    ] = "auto",
    cache_dtype: Annotated[
        str,
        typer.Option(help="Dtype of dense entries: auto, model, float32, bfloat16 or float16."),
    ] = "auto",
    device: options.Device = "auto",
) -> None:
    """Say what weights and caches will take, and what fits, without loading the model."""
    with options.for_people() as console:
        from agentkv.build import ignored_budget
        from agentkv.config import read_settings
        from agentkv.listing import print_plan
        from agentkv.plan import memory_of, plan_caches, plan_model

        given: dict[str, Any] = {
            "model": model,
            "budget": options.read_budget(budget),
            "chunk": chunk,
            "dtype": dtype,
            "cache_dtype": cache_dtype,
            "device": device,
        }
        if policies:
            given["policies"] = tuple(options.split("--policies", policies))
        settings = read_settings(**options.without_none(given))
        options.note(ignored_budget(settings))
        num_bytes = memory_of(settings.device, memory)
        planned = plan_model(settings)
        caches = plan_caches(settings, planned, num_tokens=tokens, memory=num_bytes)
        print_plan(console, planned, caches, num_tokens=tokens, memory=num_bytes)


@cli.command()
def doctor(model: options.Model = "nano", browser_path: options.Browser = None) -> None:
    """Check everything a run needs: model, browser, fonts, OCR and device."""
    with options.for_people() as console:
        from agentkv_tasks.run.preflight import examine

        colors = {"ok": "green", "degraded": "yellow", "missing": "red"}
        verdicts = []
        for finding in examine(browser_path=browser_path, model=model):
            verdicts.append(finding.verdict)
            line = Text(f"{finding.verdict:<9}", style=colors[finding.verdict])
            console.print(line + Text(f"{finding.name:<10} {finding.detail}"), soft_wrap=True)
        raise typer.Exit(1 if "missing" in verdicts else 0)
