//! The command line. `kennel warden` is not here: it is started by Kennel itself, and `main` sees to it.

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::shim::Origin;
use crate::{demo, ps, run};

/// Keep local tool servers alive exactly as long as somebody needs them
///
/// One process where ten would run, none where nobody is left, and a session that goes on when the
/// server behind it dies.
#[derive(Debug, Parser)]
#[command(name = "kennel", version = version(), after_help = EXAMPLES)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run an MCP server that speaks on stdin and stdout
    ///
    /// Put it in front of the command in your client's configuration. The server runs as before; when it
    /// crashes, the session goes on with a new one, and when the app is gone, however it went, nothing of
    /// the server is left.
    #[command(after_help = RUN_EXAMPLES)]
    Run(Box<run::Args>),

    /// Show what runs
    Ps(ps::PsArgs),

    /// Stop a server by its name or key, for all its sessions
    ///
    /// A session of a daemon starts its server again when it next needs it; a solo session ends.
    Stop(ps::StopArgs),

    /// Show what a daemon and its servers said
    Logs(ps::LogsArgs),

    /// Show what Kennel does, with nothing else installed
    ///
    /// Starts ten sessions that share a server that is built in, kills the server, the daemon and an app under them, and
    /// measures how long it takes until they go on, or until nothing is left. Takes a few seconds, in a
    /// directory of its own, and leaves nothing behind.
    Demo {
        /// Which part of the show this process plays; for the demo itself
        #[arg(hide = true)]
        part: Option<demo::Part>,
    },
}

/// Made once, and never freed: the parser wants to keep it.
fn version() -> &'static str {
    String::leak(crate::this_build::text())
}

const EXAMPLES: &str = "Examples:
  kennel demo                   see sessions survive, and nothing survive them
  kennel run -- npx some-server run an MCP server behind kennel

Exit codes: 0 done, 1 failed, 2 usage, 3 nothing found.";

const RUN_EXAMPLES: &str = "Examples:
  kennel run -- npx -y @modelcontextprotocol/server-everything
  kennel run --cwd ~/project --stop-after 5s,1s -- python3 server.py
  kennel run --share always --linger 5m -- uvx some-server

Sessions with the same command, directory and environment share one server where that is known to be safe
(--share auto): docs/SHARING.md has the table, ~/.config/kennel/servers.toml has the last word, and `kennel ps`
says why a session is on its own.

The timers: --linger is how long a shared server outlives its last client; --grace how long its owner must be
gone before it ends without clients; --max-idle ends clients that nobody can see or hear; --stop-after is
how long a server may take to end. Durations are written 500ms, 30s, 5m, 2h.

Environment: each timer is also a variable (KENNEL_LINGER, KENNEL_STOP_AFTER, KENNEL_OWNER_PID, ...);
KENNEL_OFF=1 runs the server as if kennel were not there; KENNEL_PARENT_WATCH=off leaves the end of the
session to stdin alone.

Exit codes: the server's own after the app closed stdin; 127 command not found, 126 not executable.";

pub(crate) fn run(origin: Origin) -> ExitCode {
    match Cli::parse().command {
        Command::Run(args) => run::run(*args, origin),
        Command::Ps(args) => ps::ps(&args),
        Command::Stop(args) => ps::stop(&args),
        Command::Logs(args) => ps::logs(&args),
        Command::Demo { part: None } => demo::show(),
        Command::Demo { part: Some(part) } => demo::play(part),
    }
}
