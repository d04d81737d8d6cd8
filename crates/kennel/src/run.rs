//! `kennel run`: a stdio server behind a shim.

use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use std::time::Duration;

use kennel_sys::tree::Ladder;

use crate::duration;
use crate::shim::{self, Origin, Spec};

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Start the server in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// How long the server has to end by itself: after its stdin closed, then after SIGTERM
    #[arg(long, value_name = "D[,D]", value_parser = rungs)]
    stop_after: Option<Rungs>,

    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

/// The two rungs of the ladder, as given.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Rungs(Duration, Duration);

fn rungs(text: &str) -> Result<Rungs, duration::BadDuration> {
    let (first, second) = text.split_once(',').unwrap_or((text, text));
    Ok(Rungs(duration::parse(first)?, duration::parse(second)?))
}

pub(crate) fn run(args: Args, origin: Origin) -> ExitCode {
    if std::env::var_os("KENNEL_OFF").is_some_and(|value| value == "1") {
        return become_the_server(&args);
    }
    let ladder = args
        .stop_after
        .or_else(rungs_from_env)
        .map_or_else(Ladder::default, |rungs| Ladder {
            after_eof: rungs.0,
            after_term: rungs.1,
        });
    let spec = Spec {
        command: args.command,
        cwd: args.cwd,
        ladder,
    };
    shim::run(spec, origin)
}

/// A bad value in the environment is a warning and the default: whoever set it is not at hand.
fn rungs_from_env() -> Option<Rungs> {
    let value = std::env::var("KENNEL_STOP_AFTER").ok()?;
    rungs(&value)
        .map_err(|error| crate::warn(&format!("KENNEL_STOP_AFTER is ignored: {error}")))
        .ok()
}

/// As if Kennel were not there.
fn become_the_server(args: &Args) -> ExitCode {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    if let Some(cwd) = &args.cwd {
        command.current_dir(cwd);
    }
    let error = command.exec();
    let not_found = error.kind() == std::io::ErrorKind::NotFound;
    crate::fail(&format!("{}: {error}", args.command[0].display()));
    ExitCode::from(if not_found { 127 } else { 126 })
}
