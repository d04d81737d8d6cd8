//! `kennel guard`: runs a server with ports and stops it with its owner, without the server's help.
//!
//! ```text
//! kennel guard ── warden ── server ── its descendants
//!      └─ watches: its owner; once that has exited, connections to its ports
//! ```
//!
//! The server has the stdio of this process. With `--detach`, a guardian that is not a child of this process does the
//! same, and the server's output goes into a log.

mod answer;
mod detach;
mod launch;
mod life;
pub(crate) mod output;
mod owner;
mod port;
pub(crate) mod record;
mod sessions;
mod start;
mod startable;
mod watch;

use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use kennel_guard::Owner;
use kennel_sys::tree::Detached;

use answer::AnswerTo;
pub(crate) use detach::guardian;
use port::Takeover;
use start::Start;

use crate::exit_code::USAGE;
use crate::{duration, start_error, timers, values};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Stop the server when this process has exited and no client is connected [default: KENNEL_OWNER_PID, else no
    /// owner]
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    owner_pid: Option<String>,

    /// A port of the server: check that it is free before the start, and count only its connections [default: every
    /// port it listens on]
    #[arg(long = "port", value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,

    /// Stop the server this long after its owner exited and its last client left
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse)]
    grace: Duration,

    /// Name shown by `kennel ps` [default: derived from the command]
    #[arg(long, value_name = "N", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,

    /// Which guarded server to replace if the port is in use
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "orphan")]
    takeover: Takeover,

    /// Return when the server listens; it goes on in the background, and its output goes to `kennel logs`
    #[arg(long)]
    detach: bool,

    /// How long to wait until the server listens
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration::parse)]
    ready_timeout: Duration,

    /// How long to wait for the server's exit after SIGTERM
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration::parse)]
    stop_after: Duration,

    /// Which detached processes (setsid) to keep when the server ends: auto, keep or end [default: KENNEL_DETACHED,
    /// else auto]
    ///
    /// auto: keep services with a connection from outside the server's process tree, and known services (gpg-agent, adb,
    /// build daemons), but not the server itself. keep: keep all. end: end all.
    #[arg(long, value_name = "WHICH", value_parser = timers::detached)]
    detached: Option<Detached>,

    /// Print JSON
    #[arg(long)]
    json: bool,

    /// Lock this directory or file: only one server may use it at a time
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,

    /// Also hold this lock file of earlier releases of the server, if it exists
    #[arg(long, value_name = "FILE")]
    legacy_lock: Vec<PathBuf>,

    /// The command of the server, with its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    if values::kennel_is_off() {
        return start_error::become_server(&args.command, None);
    }
    let owner = match owner::find(args.owner_pid.as_deref()) {
        Ok(owner) => owner,
        Err(error) => return crate::fail_with(USAGE, &error),
    };
    if let Some(Owner::Gone) = owner {
        crate::warn(
            "the owner has already exited: the server ends unless a client connects within --grace",
        );
    }
    match args.detach {
        true => detach::run(owner.as_ref()),
        false => ExitCode::from(serve(args, owner, AnswerTo::Stdio)),
    }
}

/// Starts the server and guards it, or reports why it is not started. Returns the exit code.
fn serve(args: Args, owner: Option<Owner>, mut answer_to: AnswerTo) -> u8 {
    kennel_sys::signals::ignore_file_size_signal();
    match Start::new(&args).and_then(|start| start.prepare()) {
        Ok(ready) => match ready.launch(args, owner, &mut answer_to) {
            Ok(watch) => watch.run(),
            Err(answer) => answer_to.tell(&answer),
        },
        Err(answer) => answer_to.tell(&answer),
    }
}
