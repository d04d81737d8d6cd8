//! The command line. `kennel warden` is not here: it is started by Kennel itself, and `main` sees to it.

use std::ffi::OsString;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, Parser, Subcommand};

use kennel_sys::signals;

use crate::sharing::{Named, ServersToml};
use crate::shim::Origin;
use crate::{complaint, demo, doctor, guard, logs, ps, purge, reference, run, stop, top, wrap};

/// Help is the same wherever it is read, and no wider than the least of terminals.
const COLUMNS: usize = 80;

/// Keep local tool servers alive exactly as long as somebody needs them
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

    /// Run a server with ports (HTTP, WebSocket), bound to its owner
    ///
    /// When its owner is gone, however it went, and nobody is connected for a while, the server ends with
    /// everything it started. A connection keeps it. Whoever comes to a port that is taken is told by whom.
    #[command(after_help = GUARD_EXAMPLES)]
    Guard(Box<guard::Args>),

    /// Show what runs
    ///
    /// One line for each daemon, session of its own and guarded server: its state, how many servers and which apps it
    /// has, what its servers hold in memory and what sharing them saves, how often they were asked something, and how old
    /// it is. Lines below it tell what is not as usual.
    #[command(after_help = PS_EXAMPLES)]
    Ps(ps::Args),

    /// Watch what runs, full-screen
    ///
    /// Everything that `kennel ps` shows, once a second: servers and clients of the chosen one, its memory and requests
    /// over time, its last events and its log. `?` has the keys.
    #[command(after_help = TOP_EXAMPLES)]
    Top(top::Args),

    /// Stop a server by its name or key, for all its sessions
    ///
    /// A session of a daemon starts its server again when it next needs it, also one that has a server of its own only
    /// until it finds a daemon; any other solo session ends, and so does a guarded server.
    #[command(after_help = STOP_EXAMPLES)]
    Stop(stop::Args),

    /// Show what happened and what the server said, in one timeline
    ///
    /// Each line has its time and who speaks: kennel, or the server on its stderr (a detached server's stdout too).
    /// A session on its own has no log: what its server says goes to its app.
    #[command(after_help = LOGS_EXAMPLES)]
    Logs(logs::Args),

    /// Put Kennel before the servers in your apps' configurations
    ///
    /// Finds the configurations, yours and this project's, shows what it proposes for each server and
    /// why, and asks. Only `command` and `args` change; everything else keeps its bytes, and `kennel unwrap` gives
    /// all of them back.
    #[command(after_help = WRAP_EXAMPLES)]
    Wrap(wrap::Args),

    /// Take Kennel out of your apps' configurations again
    ///
    /// A file that nobody edited since gets back every byte; in one that was edited, just Kennel's own change is
    /// undone.
    #[command(after_help = UNWRAP_EXAMPLES)]
    Unwrap(wrap::Args),

    /// Find what is not as it should be
    ///
    /// Looks at the runtime directory, daemons, records, your servers.toml and your apps' configurations, and for
    /// orphans on this machine, also those that Kennel did not start. Each finding comes with the command that mends
    /// it. Changes nothing. Exit code 0 if all is well, 1 if not.
    #[command(after_help = DOCTOR_EXAMPLES)]
    Doctor(doctor::DoctorArgs),

    /// End what nobody needs any more
    ///
    /// What is left of servers that Kennel started; with --foreign, after showing the evidence and asking, also servers
    /// that others started: their starter is gone, and nobody can write to their stdin or read their stdout.
    #[command(after_help = REAP_EXAMPLES)]
    Reap(doctor::ReapArgs),

    /// Remove everything that Kennel keeps
    ///
    /// Shows what there is (runtime files, logs, caches, state that was declared with `kennel guard --state`, backups of
    /// configurations), asks, and removes it. Each declared state is asked for by its path; --yes keeps it unless
    /// --with-state names it. Refused with exit code 2 while anybody uses it. Your apps' configurations are not
    /// touched: `kennel unwrap` does that.
    #[command(after_help = PURGE_EXAMPLES)]
    Purge(purge::Args),

    /// Print a script that completes commands and options
    #[command(after_help = COMPLETIONS_EXAMPLES)]
    Completions(reference::CompletionsArgs),

    /// Print the manual, or write a page for each command
    #[command(after_help = MAN_EXAMPLES)]
    Man(reference::ManArgs),

    /// Show what Kennel does, with nothing else installed
    ///
    /// Starts ten sessions that share a server that is built in, kills the server, the daemon and an app under them, and
    /// measures how long it takes until they go on, or until nothing is left. Takes a few seconds, in a
    /// directory of its own, and leaves nothing behind.
    #[command(after_help = DEMO_EXAMPLES)]
    Demo,
}

/// Made once, and never freed: the parser wants to keep it.
fn version() -> &'static str {
    String::leak(crate::this_build::text())
}

/// What apps start, again and again.
#[derive(Debug, Subcommand)]
enum Session {
    /// Run an MCP server that speaks on stdin and stdout
    ///
    /// Put it in front of the command in your client's configuration. The server runs as before; when it
    /// crashes, the session goes on with a new one, and when the app is gone, however it went, nothing of
    /// the server is left.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<run::Args>),
}

/// A command line that begins a session. Read without the rest of the definition, which is of no use to a process that
/// there are many of.
#[derive(Debug, Parser)]
#[command(name = "kennel", version = version(), term_width = COLUMNS)]
struct SessionCli {
    #[command(subcommand)]
    command: Session,
}

const EXAMPLES: &str = "Examples:
  kennel demo                   see sessions survive, and nothing survive them
  kennel wrap                   put kennel before the servers of your apps
  kennel run -- npx some-server run an MCP server behind kennel
  kennel guard --owner-pid $PPID --port 8080 -- python3 -m http.server 8080
                                run a server that ends with its owner
  kennel doctor                 find what is not as it should be

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing found, 98 port held by another.";

const RUN_EXAMPLES: &str = "Examples:
  kennel run -- npx -y @modelcontextprotocol/server-everything
  kennel run --cwd ~/project --stop-after 5s,1s -- python3 server.py
  kennel run --share always --linger 5m -- uvx some-server
  kennel run memory                     a server with this name in servers.toml

Sessions with the same command, directory and environment share one server where that is known to be safe \
(--share auto): docs/SHARING.md has the table, ~/.config/kennel/servers.toml has the last word, and `kennel \
ps --wide` says why a session is on its own.

The timers: --linger is how long a shared server outlives its last client; --grace how long its owner must \
be gone before it ends without clients; --max-idle ends clients that nobody can see or hear; --stop-after is \
how long a server may take to end; --hibernate stops a server nobody asks, until somebody does. Durations \
are written 500ms, 1.5s, 30s, 5m, 2h.

When the server dies, its sessions go on with the next one. What was under way is asked again where that \
does no harm (--replay safe), and otherwise answered with an error that says that nobody knows whether it \
was done.

When the server's program, script or package changes on disk, a shared server is replaced while nobody waits \
for it, and one session's own is only marked (--on-change). A newer kennel takes over its daemons while they \
run.

Environment: each timer is also a variable (KENNEL_LINGER, KENNEL_STOP_AFTER, KENNEL_OWNER_PID, ...), and so \
are KENNEL_REPLAY and KENNEL_ON_CHANGE; KENNEL_OFF=1 runs the server as if kennel were not there; \
KENNEL_PARENT_WATCH=off leaves the end of the session to stdin alone. A switch is 1, true, yes or on, or 0, \
false, no or off. A variable that cannot be read is ignored, with a warning.

Exit codes: the server's own after the app closed stdin; 127 command not found, 126 not executable.";

const GUARD_EXAMPLES: &str = "Examples:
  kennel guard --owner-pid $PPID --port 8080 -- python3 -m http.server 8080
  kennel guard --detach --json --port 6505 --owner-pid 4711 -- node server.js
  kennel guard --takeover older --port 7000 --state ~/.local/share/thing -- thing serve

The owner: when it is gone (killed, exited, a zombie) and nobody has been connected for --grace, the whole \
server ends: SIGTERM, and what is left after --stop-after is killed. A connection that comes cancels that; \
its end begins the grace anew. Without an owner, kennel passes signals and the exit code on, and cleans up.

A port that is taken: a guarded server of the same command in the same directory whose owner is gone and \
that nobody uses is replaced (--takeover orphan); with --takeover older, so is one whose program or script \
has changed on disk. One that is wanted is `already running`: exit code 0 and its facts. Anybody else keeps \
the port: exit code 98, with who it is. The successor is checked before the incumbent is stopped: that its \
program is there and executable, that its interpreter is, that its script parses.

With --detach, `kennel ps`, `kennel logs` and `kennel stop` show it, what it said, and its end.

Environment: KENNEL_OWNER_PID names the owner, and does not reach the server; KENNEL_OFF=1 runs the server \
as if kennel were not there.

Exit codes: the server's own, 128 and its number if a signal ended it; 0 if nobody needed it any more, or if \
it runs already; 98 port held by another; 127 command not found, 126 not executable; 1 anything else.";

const PS_EXAMPLES: &str = "Examples:
  kennel ps
  kennel ps --wide                      keys, versions, pids, and why a session is on its own
  kennel ps --watch                     until Ctrl-C
  kennel ps --json | jq '.[].name'";

const TOP_EXAMPLES: &str = "Examples:
  kennel top
  kennel top memory                     only what has this in its name, key, state or app

Colours are left out where NO_COLOR is set.";

const STOP_EXAMPLES: &str = "Examples:
  kennel stop server-memory
  kennel stop --all";

const LOGS_EXAMPLES: &str = "Examples:
  kennel logs server-memory
  kennel logs server-memory -f          go on as more is written
  kennel logs server-memory --since 10m";

const DEMO_EXAMPLES: &str = "Example:
  kennel demo";

const COMPLETIONS_EXAMPLES: &str = "Examples:
  kennel completions bash > ~/.local/share/bash-completion/completions/kennel
  kennel completions zsh > ~/.zfunc/_kennel
  kennel completions fish > ~/.config/fish/completions/kennel.fish";

const MAN_EXAMPLES: &str = "Examples:
  kennel man | man -l -                 read it now
  kennel man --out ~/.local/share/man/man1";

const WRAP_EXAMPLES: &str = "Examples:
  kennel wrap --dry-run                 see what would change, in all apps
  kennel wrap --client cursor           one app
  kennel wrap --file ~/x/mcp.json --yes one file, without asking

shared: its sessions use one server, where that is known to be safe. solo: each session has a server of its \
own, and still survives its crashes and leaves nothing behind. skip: nothing to put Kennel before.";

const UNWRAP_EXAMPLES: &str = "Examples:
  kennel unwrap --dry-run               see what would change
  kennel unwrap --yes                   everywhere, without asking";

const DOCTOR_EXAMPLES: &str = "Examples:
  kennel doctor
  kennel doctor --json | jq '.findings[].mend'";

const REAP_EXAMPLES: &str = "Examples:
  kennel reap                           end what is left of Kennel's own servers
  kennel reap --foreign --dry-run       see which orphans others left, and the evidence
  kennel reap --foreign                 the same, then asks, then ends them

A process that computes, writes, or may be of use to another process is shown
with the reason, and never ended.";

const PURGE_EXAMPLES: &str = "Examples:
  kennel purge --dry-run                see what there is
  kennel stop --all && kennel purge     remove all of it, after a question
  kennel purge some-server --yes        only what belongs to one server
  kennel purge --yes --with-state /srv/notes
                                        all of it, with that server's state";

pub(crate) fn run(origin: Origin) -> ExitCode {
    if std::env::args_os().nth(1).is_some_and(|word| word == "run") {
        return match SessionCli::try_parse() {
            Ok(SessionCli {
                command: Session::Run(args),
            }) => run::run(*args, origin),
            Err(error) => not_understood(&error, &SessionCli::command()),
        };
    }
    let command = match Cli::try_parse() {
        Ok(cli) => cli.command,
        Err(error) => return not_understood(&error, &Cli::command()),
    };
    if !matches!(
        command,
        Command::Session(_) | Command::Guard(_) | Command::Demo
    ) {
        signals::end_with_the_reader();
        complaint::may_wait();
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
        Command::Demo => demo::show(),
    }
}

/// Help and version, which were asked for, or what is wrong with the line.
fn not_understood(error: &clap::Error, definition: &clap::Command) -> ExitCode {
    let words: Vec<OsString> = std::env::args_os().skip(1).collect();
    if let Some(advice) = advice_on_name(error, &words, definition) {
        crate::fail(&advice);
        return ExitCode::from(2);
    }
    if error.kind() == ErrorKind::UnknownArgument
        && server_word(&words, definition).is_none_or(|at| named(&words[at]).is_none())
        && let Some(line) = with_dashes(&words, definition)
    {
        let what =
            "the server's command comes after `--`, so that its options are not taken for kennel's";
        crate::fail(&format!("{what}:\n  {line}"));
        return ExitCode::from(2);
    }
    let nothing_to_run = error.kind() == ErrorKind::MissingRequiredArgument;
    if nothing_to_run && words.first().is_some_and(|word| word == "run") {
        crate::fail(
            "what is to run? `kennel run -- COMMAND`, or `kennel run NAME` with a name in servers.toml; \
             `kennel run --help` has examples",
        );
        return ExitCode::from(2);
    }
    if error.use_stderr() {
        complaint::say(error.render().to_string().trim_end());
        return ExitCode::from(2);
    }
    let printed = error.print().and_then(|()| io::stdout().flush());
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(error) => crate::fail(&format!("cannot write to stdout: {error}")),
    }
}

/// What to do instead of `kennel run NAME EXTRA`, where servers.toml has the name.
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
    let named = named(&words[at])?;
    let (name, rest) = (&named.name, &words[at + 1..]);
    let command: Vec<OsString> = named.command.iter().map(OsString::from).collect();
    let line = [&command, rest].concat();
    Some(format!(
        "{name} is run as servers.toml says, without more arguments: write them into its `command` there, or run \
         the program itself:\n  kennel run -- {}",
        quoted(&line)
    ))
}

fn named(word: &OsString) -> Option<Named> {
    ServersToml::named_by_user(word.to_str()?)
}

/// The line as it was meant, where `run` or `guard` was given a command without `--`.
fn with_dashes(words: &[OsString], definition: &clap::Command) -> Option<String> {
    let (ours, its) = words.split_at_checked(server_word(words, definition)?)?;
    Some(format!("kennel {} -- {}", quoted(ours), quoted(its)))
}

fn quoted(words: &[OsString]) -> String {
    let words = words.iter().map(|word| wrap::quoted(Path::new(word)));
    words.collect::<Vec<_>>().join(" ")
}

/// Where the first word of `run` or `guard` is that is neither an option nor the value of one.
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
