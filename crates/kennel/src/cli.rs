//! The command line. `kennel warden`, `kennel daemon` and `kennel guardian` are not part of it: only Kennel starts
//! them, and `kennel::main` runs them.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use kennel_sys::limits::with_enough_stack;
use kennel_sys::signals;

use crate::exit_code::USAGE;
use crate::sharing::{Named, ServersToml};
use crate::shim::FoundStarter;
use crate::{demo, doctor, guard, logs, ps, purge, reference, run, stderr, stop, top, wrap};

/// Width of help texts, in columns: fits the narrowest usual terminal, and does not depend on the terminal.
const COLUMNS: usize = 80;

/// Run local MCP servers exactly as long as they are needed
///
/// One process where ten would run, none where nobody is left, and a session that goes on when the
/// server behind it dies.
#[derive(Debug, Parser)]
#[command(name = "kennel", version = version(), after_help = EXAMPLES, term_width = COLUMNS)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    #[command(flatten)]
    Session(Session),

    /// Run a server with ports, and stop it with its owner
    ///
    /// For servers that clients reach by HTTP or WebSocket. When the owner has exited for any reason and no client is connected, the server and everything it started are
    /// stopped. If the port is in use, the error names the process that holds it.
    #[command(after_help = GUARD_EXAMPLES)]
    Guard(Box<guard::Args>),

    /// List running servers
    ///
    /// Prints one line for each daemon, dedicated session and guarded server: state, servers, apps, memory, memory saved
    /// by sharing, requests and age. Lines below it report anything unusual.
    #[command(after_help = PS_EXAMPLES)]
    Ps(ps::Args),

    /// Monitor running servers, full-screen
    ///
    /// Shows the list of `kennel ps` once a second and, for the selected row, its servers and clients, memory and requests
    /// over time, recent events and log. Press `?` for the keys.
    #[command(after_help = TOP_EXAMPLES)]
    Top(top::Args),

    /// Stop a server for all its sessions
    ///
    /// Sessions that share the server stay open, and their next request starts it again. A dedicated session ends with
    /// its server, unless it is dedicated only because no daemon could be reached. A guarded server ends.
    #[command(after_help = STOP_EXAMPLES)]
    Stop(stop::Args),

    /// Show the log of a server
    ///
    /// Each line has its time and its source: Kennel, or stderr of the server (for a detached server also its stdout).
    /// Dedicated sessions have no log: the stderr of their server goes to the app.
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(logs::Args),

    /// Run the servers in your apps' configurations through Kennel
    ///
    /// Finds your configurations and those of this project, shows the change for each server with the reason, and asks
    /// for confirmation. Changes only `command` and `args`; `kennel unwrap` restores every byte.
    #[command(after_help = WRAP_EXAMPLES)]
    Wrap(wrap::Args),

    /// Undo `kennel wrap`
    ///
    /// A file that was not edited since gets back every byte. In an edited file only Kennel's change is undone.
    #[command(after_help = UNWRAP_EXAMPLES)]
    Unwrap(wrap::Args),

    /// Check for problems and suggest fixes
    ///
    /// Checks the runtime directory, daemons, records, servers.toml and your apps' configurations, and searches for
    /// orphaned servers, including those that Kennel did not start. Each problem is shown with the command that fixes it.
    /// Changes nothing. Exits with 0 if there are no problems, else with 1.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(doctor::DoctorArgs),

    /// Kill orphaned servers
    ///
    /// Kills processes left over from servers that Kennel started. With --foreign, also kills servers that other programs
    /// started, after showing the evidence and asking: their starter has exited, and no process can write to their stdin
    /// or read their stdout.
    #[command(after_help = REAP_EXAMPLES)]
    Reap(doctor::ReapArgs),

    /// Remove all files of Kennel
    ///
    /// Shows the files (runtime files, logs, caches, state declared with `kennel guard --state`, backups of
    /// configurations), asks for confirmation, and removes them. Asks for each declared state by its path; --yes keeps it
    /// unless --with-state names it. Exits with 2 and removes nothing while a server runs. Does not change your apps'
    /// configurations: `kennel unwrap` does that.
    #[command(after_help = PURGE_EXAMPLES)]
    Purge(purge::Args),

    /// Print a shell completion script
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(reference::CompletionsArgs),

    /// Print the man page, or write one page per command
    #[command(after_help = MAN_EXAMPLES)]
    Man(reference::ManArgs),

    /// Show crash recovery and cleanup
    ///
    /// Starts ten sessions that share a built-in server, kills the server, the daemon and an app, and measures the time
    /// until the sessions go on, or until no process is left. Takes a few seconds, needs nothing else installed, and
    /// removes its temporary directory.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo,
}

/// The version text that clap keeps for the life of the process; leaked once.
fn version() -> &'static str {
    String::leak(crate::this_build::text())
}

/// The command that apps run, once per session.
#[derive(Debug, Subcommand)]
enum Session {
    /// Run an MCP server that uses stdin and stdout
    ///
    /// Put `kennel run --` before the command in your app's configuration. If the server crashes, the session goes on
    /// with a new one. When the app exits or is killed, the server and everything it started are stopped.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<run::Args>),
}

/// The command line of `kennel run` alone. Parsed without the other commands: there is one such process per session,
/// and their definitions would only use its memory.
#[derive(Debug, Parser)]
#[command(name = "kennel", version = version(), term_width = COLUMNS)]
struct SessionCli {
    #[command(subcommand)]
    command: Session,
}

const EXAMPLES: &str = "Examples:
  kennel demo                   show crash recovery and cleanup
  kennel wrap                   run the servers of your apps through kennel
  kennel run -- npx some-server run one MCP server through kennel
  kennel guard --owner-pid $PPID --port 8080 -- python3 -m http.server 8080
                                run a server that stops with its owner
  kennel doctor                 check for problems and suggest fixes

Exit codes: 0 success, 1 failure, 2 wrong usage, 3 nothing found, 98 port in use.";

const RUN_EXAMPLES: &str = "Examples:
  kennel run -- npx -y @modelcontextprotocol/server-everything
  kennel run --cwd ~/project --stop-after 5s,1s -- python3 server.py
  kennel run --share always --linger 5m -- uvx some-server
  kennel run memory                     a server with this name in servers.toml

Sharing: sessions with the same command, directory and environment share one server if it is known to be \
safe to share (--share auto). docs/SHARING.md has the table of such servers, ~/.config/kennel/servers.toml \
overrides it, and `kennel ps --wide` shows why a session has a dedicated server.

Durations are written 500ms, 1.5s, 30s, 5m, 2h; sizes 512K, 8M, 1G.

Crashes: sessions go on with the next server. Requests in flight are retried if that is safe (--replay \
safe); the others get an error which says that their outcome is unknown.

Updates: if the program, script or package of a server changes on disk, a shared server is replaced when no \
request is in flight; a dedicated server is only shown as stale (--on-change). A newer kennel replaces \
running daemons without ending their sessions.

Environment: each timer can also be set by a variable (KENNEL_LINGER, KENNEL_STOP_AFTER, KENNEL_OWNER_PID, \
...), and so can KENNEL_REPLAY and KENNEL_ON_CHANGE. KENNEL_OFF=1 runs the server directly, without kennel. \
KENNEL_PARENT_WATCH=off ends the session only at the end of stdin, not when the app exits. A switch is 1, \
true, yes or on, or 0, false, no or off. A variable with an invalid value is ignored with a warning.

Exit codes: that of the server after the app closed stdin; 127 command not found, 126 not executable.";

const GUARD_EXAMPLES: &str = "Examples:
  kennel guard --owner-pid $PPID --port 8080 -- python3 -m http.server 8080
  kennel guard --detach --json --port 6505 --owner-pid 4711 -- node server.js
  kennel guard --takeover older --port 7000 --state ~/.local/share/thing -- thing serve

Owner: when the owner has exited and no client was connected for --grace, the server and everything it \
started get SIGTERM, and SIGKILL after --stop-after. A new connection cancels this; the grace starts again \
when it ends. Without an owner, kennel forwards signals and the exit code, and cleans up.

Port in use: if a guarded server with the same command and directory holds the port, but its owner has \
exited and no client is connected, the new server replaces it (--takeover orphan); with --takeover older, \
also if its program or script has changed on disk. If that server is still needed, kennel prints `already \
running` with its pid and ports, and exits with 0. If another process holds the port, kennel names it and \
exits with 98. Before the old server is stopped, kennel checks that the program and the interpreter of the \
new one exist and that its script parses.

Detached servers (--detach) are listed by `kennel ps`; `kennel logs` shows their output, `kennel stop` stops \
them.

Environment: KENNEL_OWNER_PID names the owner and is not passed to the server. KENNEL_OFF=1 runs the server \
directly, without kennel.

Exit codes: that of the server, or 128 plus the signal that killed it; 0 if the server was no longer needed, \
or is already running; 98 port in use; 127 command not found, 126 not executable; 1 any other failure.";

const PS_EXAMPLES: &str = "Examples:
  kennel ps
  kennel ps --wide                      with keys, versions and pids
  kennel ps --watch                     refresh until Ctrl-C
  kennel ps --json | jq '.[].name'";

const TOP_EXAMPLES: &str = "Examples:
  kennel top
  kennel top memory                     only rows that contain `memory`

NO_COLOR turns colours off.";

const STOP_EXAMPLES: &str = "Examples:
  kennel stop server-memory
  kennel stop --all";

const LOGS_EXAMPLES: &str = "Examples:
  kennel logs server-memory
  kennel logs server-memory -f          print new lines as they are written
  kennel logs server-memory --since 10m";

const DEMO_EXAMPLES: &str = "Example:
  kennel demo";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  kennel completions bash > ~/.local/share/bash-completion/completions/kennel
  kennel completions zsh > ~/.zfunc/_kennel
  kennel completions fish > ~/.config/fish/completions/kennel.fish";

const MAN_EXAMPLES: &str = "Examples:
  kennel man | man -l -                 show the man page
  kennel man --out ~/.local/share/man/man1";

const WRAP_EXAMPLES: &str = "Examples:
  kennel wrap --dry-run                 show what would change in all apps
  kennel wrap --client cursor           change one app
  kennel wrap --file ~/x/mcp.json --yes change one file, without asking

shared: all sessions use one server. solo: each session has a dedicated server; crash recovery and cleanup \
work too. skip: the entry cannot run through Kennel.";

const UNWRAP_EXAMPLES: &str = "Examples:
  kennel unwrap --dry-run               show what would change
  kennel unwrap --yes                   undo all changes, without asking";

const DOCTOR_EXAMPLES: &str = "Examples:
  kennel doctor
  kennel doctor --json | jq '.findings[].fix'";

const REAP_EXAMPLES: &str = "Examples:
  kennel reap                           kill leftovers of Kennel's servers
  kennel reap --foreign --dry-run       show all orphans with the evidence
  kennel reap --foreign                 show them, ask, and kill them

A process that computes, writes, or may be in use by another process is shown
with the reason, and never killed.";

const PURGE_EXAMPLES: &str = "Examples:
  kennel purge --dry-run                show all files of Kennel
  kennel stop --all && kennel purge     remove all of them, after a question
  kennel purge some-server --yes        remove the files of one server
  kennel purge --yes --with-state /srv/notes
                                        remove all, and this server's state";

/// Parses the command line; `Err` is the exit code once its fault was explained. Takes a few hundred KB of stack.
fn parse() -> Result<Command, ExitCode> {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        return match SessionCli::try_parse() {
            Ok(session) => Ok(Command::Session(session.command)),
            Err(error) => Err(explain_usage(&error, &SessionCli::command())),
        };
    }
    match Cli::try_parse() {
        Ok(cli) => Ok(cli.command),
        Err(error) => Err(explain_usage(&error, &Cli::command())),
    }
}

pub(crate) fn run(origin: FoundStarter) -> ExitCode {
    let command = match with_enough_stack(parse) {
        Ok(command) => command,
        Err(code) => return code,
    };
    if !matches!(
        command,
        Command::Session(_) | Command::Guard(_) | Command::Demo
    ) {
        signals::end_on_broken_pipe();
        stderr::allow_blocking();
    }
    match command {
        Command::Session(Session::Run(args)) => run::run(*args, origin),
        Command::Guard(args) => guard::run(*args),
        Command::Ps(args) => ps::ps(&args),
        Command::Top(args) => top::top(args),
        Command::Stop(args) => stop::stop(&args),
        Command::Logs(args) => logs::logs(&args),
        Command::Wrap(args) => wrap::wrap(&args),
        Command::Unwrap(args) => wrap::unwrap(&args),
        Command::Doctor(args) => doctor::doctor(&args),
        Command::Reap(args) => doctor::reap(&args),
        Command::Purge(args) => purge::purge(&args),
        Command::Completions(args) => reference::completions(&args, Cli::command()),
        Command::Man(args) => reference::man(&args, Cli::command()),
        Command::Demo => demo::run(),
    }
}

/// Prints help or version if they were requested, else the error of the command line.
fn explain_usage(error: &clap::Error, definition: &clap::Command) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(advice) = advice_on_name(error, &words, definition) {
        return crate::fail_with(USAGE, &advice);
    }
    if error.kind() == ErrorKind::UnknownArgument
        && server_word(&words, definition).is_none_or(|at| server_name(&words[at]).is_none())
        && let Some(line) = with_dashes(&words, definition)
    {
        let what =
            "write the server's command after `--`, so that its options are not taken for kennel's";
        return crate::fail_with(USAGE, &format!("{what}:\n  {line}"));
    }
    let nothing_to_run = error.kind() == ErrorKind::MissingRequiredArgument;
    if nothing_to_run && words.first().is_some_and(|word| word == "run") {
        return crate::fail_with(
            USAGE,
            "no command is given: write `kennel run -- COMMAND`, or `kennel run NAME` with a name in servers.toml; \
             `kennel run --help` has examples",
        );
    }
    if error.use_stderr() {
        stderr::print(error.render().to_string().trim_end());
        return ExitCode::from(USAGE);
    }
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot write to stdout: {error}")),
    }
}

/// The hint for `kennel run NAME EXTRA`, where NAME is a name in servers.toml.
fn advice_on_name(
    error: &clap::Error,
    words: &[OsString],
    definition: &clap::Command,
) -> Option<String> {
    let Some(ContextValue::String(odd)) = error.get(ContextKind::InvalidArg) else {
        return None;
    };
    let is_run = words.first().is_some_and(|word| word == "run");
    if error.kind() != ErrorKind::UnknownArgument || !is_run || odd.starts_with('-') {
        return None;
    }
    let at = server_word(words, definition)?;
    let named = server_name(&words[at])?;
    let (name, rest) = (&named.name, &words[at + 1..]);
    let command: Vec<OsString> = named.command.iter().map(OsString::from).collect();
    let line = [&command, rest].concat();
    Some(format!(
        "{name} is a name in servers.toml and takes no more arguments: write them into its `command` there, or run \
         the program itself:\n  kennel run -- {}",
        quoted(&line)
    ))
}

fn server_name(word: &OsString) -> Option<Named> {
    ServersToml::named_by_user(word.to_str()?)
}

/// The corrected command line of a `run` or `guard` whose command was given without `--`.
fn with_dashes(words: &[OsString], definition: &clap::Command) -> Option<String> {
    let (ours, its) = words.split_at_checked(server_word(words, definition)?)?;
    Some(format!("kennel {} -- {}", quoted(ours), quoted(its)))
}

fn quoted(words: &[OsString]) -> String {
    let words = words.iter().map(|word| wrap::quoted(Path::new(word)));
    words.collect::<Vec<_>>().join(" ")
}

/// The index of the first word of `run` or `guard` that is neither an option nor the value of an option.
fn server_word(words: &[OsString], definition: &clap::Command) -> Option<usize> {
    let name = words
        .first()?
        .to_str()
        .filter(|name| ["run", "guard"].contains(name))?;
    let command = definition.find_subcommand(name)?;
    let takes_value = |option: &str| {
        let known = command.get_arguments().find(|arg| {
            let long = option.strip_prefix("--");
            let short = option
                .strip_prefix('-')
                .and_then(|short| short.chars().next());
            arg.get_long().is_some_and(|it| Some(it) == long)
                || arg.get_short().is_some_and(|it| Some(it) == short)
        })?;
        Some(known.get_action().takes_values())
    };
    let mut at = 1;
    while let Some(word) = words.get(at)?.to_str().filter(|word| word.starts_with('-')) {
        at += match word {
            "--" => return None,
            _ if word.contains('=') => 1,
            _ => 1 + usize::from(takes_value(word)?),
        };
    }
    (at < words.len()).then_some(at)
}
