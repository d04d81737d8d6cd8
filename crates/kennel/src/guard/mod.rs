//! `kennel guard`: a server with ports, bound to its owner, without its help.
//!
//! ```text
//! kennel guard ── warden ── server ── whatever it starts
//!      └─ watches: its owner; once that is gone, connections to its ports
//! ```
//!
//! The server's stdio is ours, handed through. With `--detach` the same is done by a guardian that is nobody's
//! child, and what the server says goes into a log.

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
use std::process::{Command, ExitCode};
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use kennel_guard::Owner;
use kennel_sys::program;
use kennel_sys::tree::Detached;

use answer::Voice;
pub(crate) use detach::guardian;
use port::Takeover;
use start::Start;

use crate::start_error::{self, Attempt};
use crate::{duration, timers, values};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The process the server is bound to: when it is gone and nobody is connected, the server ends
    /// [default: KENNEL_OWNER_PID, else nobody]
    #[arg(long, value_name = "PID", allow_hyphen_values = true)]
    owner_pid: Option<String>,

    /// A port of the server: who holds it is checked before the start, and only its connections count
    /// [default: every port it listens on]
    #[arg(long = "port", value_name = "P", value_parser = clap::value_parser!(u16).range(1..))]
    ports: Vec<u16>,

    /// How long the owner must be gone, with nobody connected, before the server ends
    #[arg(long, value_name = "D", default_value = "5s", value_parser = duration::parse)]
    grace: Duration,

    /// What `kennel ps` calls it [default: after its command]
    #[arg(long, value_name = "N", value_parser = NonEmptyStringValueParser::new())]
    name: Option<String>,

    /// Whose place at a port may be taken
    #[arg(long, value_enum, value_name = "WHOSE", default_value = "orphan")]
    takeover: Takeover,

    /// Return when the server listens, and let it go on without us; what it says goes to `kennel logs`
    #[arg(long)]
    detach: bool,

    /// How long the server may take until it listens
    #[arg(long, value_name = "D", default_value = "30s", value_parser = duration::parse)]
    ready_timeout: Duration,

    /// How long the server has to end by itself once it was asked to
    #[arg(long, value_name = "D", default_value = "2s", value_parser = duration::parse)]
    stop_after: Duration,

    /// Which processes that detached themselves (setsid) outlive the server: auto, keep or end
    /// [default: KENNEL_DETACHED, else auto]
    ///
    /// auto: services beside the server that listen on a socket and have a connection from outside its process tree, and
    /// known ones (gpg-agent, adb, build daemons). A server that detaches itself is none. keep: all. end: none.
    #[arg(long, value_name = "WHICH", value_parser = timers::detached)]
    detached: Option<Detached>,

    /// For programs rather than people
    #[arg(long)]
    json: bool,

    /// A directory or file that only one server may use at a time; held for the server's life
    #[arg(long, value_name = "DIR")]
    state: Vec<PathBuf>,

    /// Where earlier releases of this server kept their lock; held for the server's life if it is there
    #[arg(long, value_name = "FILE")]
    legacy_lock: Vec<PathBuf>,

    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

pub(crate) fn run(args: Args) -> ExitCode {
    if values::kennel_is_off() {
        return become_the_server(&args.command);
    }
    let owner = match owner::find(args.owner_pid.as_deref()) {
        Ok(owner) => owner,
        Err(error) => {
            crate::fail(&error);
            return ExitCode::from(2);
        }
    };
    if let Some(Owner::Gone) = owner {
        crate::warn("its owner is gone already: it ends unless somebody connects within the grace");
    }
    match args.detach {
        true => detach::run(owner.as_ref()),
        false => ExitCode::from(serve(args, owner, Voice::Here)),
    }
}

/// Starts the server and guards it, or says why there is nothing to guard. Returns the exit code.
fn serve(args: Args, owner: Option<Owner>, mut voice: Voice) -> u8 {
    kennel_sys::signals::survive_file_size_limit();
    match Start::new(&args).and_then(|start| start.prepare()) {
        Ok(ready) => match ready.launch(args, owner, &mut voice) {
            Ok(watch) => watch.run(),
            Err(answer) => voice.tell(&answer),
        },
        Err(answer) => voice.tell(&answer),
    }
}

/// As if Kennel were not there.
fn become_the_server(command: &[OsString]) -> ExitCode {
    let error = program::become_program(Command::new(&command[0]).args(&command[1..]));
    let path = std::env::var_os("PATH");
    let attempt = Attempt {
        program: &command[0],
        cwd: None,
        path: path.as_deref(),
    };
    let (code, words) = start_error::explain(attempt, error.raw_os_error().unwrap_or_default());
    crate::fail(&words);
    ExitCode::from(code)
}
