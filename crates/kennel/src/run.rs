//! `kennel run`: a stdio server behind a shim.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::Duration;

use kennel_core::hello::{self, ClientHello, PROTOCOL, Text};
use kennel_core::lifetime;
use kennel_sys::process::ProcessRef;
use kennel_sys::starter::{Role, Starter};
use kennel_sys::tree::Ladder;

use crate::election::Policy;
use crate::key::{self, Ingredients};
use crate::shim::{self, Origin, Sharing, Spec};
use crate::timers::Timers;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whether the server runs behind a daemon
    ///
    /// In this version each session of a daemon still has a server of its own.
    #[arg(long, value_enum, default_value = "never", value_name = "WHEN")]
    share: Share,

    /// Start the server in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// The only environment variables that tell one daemon from another
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    env_key: Option<Vec<OsString>>,

    #[command(flatten)]
    timers: Timers,

    /// The server and its arguments
    #[arg(last = true, required = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Share {
    /// A server of its own, as a child of the session
    Never,
    /// Through the daemon of its key
    Always,
}

pub(crate) fn run(args: Args, origin: Origin) -> ExitCode {
    if std::env::var_os("KENNEL_OFF").is_some_and(|value| value == "1") {
        return become_the_server(&args);
    }
    let timers = match args.timers.settle() {
        Ok(timers) => timers,
        Err(error) => {
            crate::fail(&error);
            return ExitCode::from(2);
        }
    };
    let ladder = Ladder {
        after_eof: timers.stop_after.0,
        after_term: timers.stop_after.1,
    };
    let sharing = (args.share == Share::Always).then(|| {
        let cwd = args.cwd.clone().or_else(|| std::env::current_dir().ok());
        let cwd = cwd.unwrap_or_else(|| PathBuf::from("/"));
        let policy = Policy {
            linger: timers.linger.unwrap_or(lifetime::SHARED_LINGER),
            grace: timers.grace,
            max_idle: timers.max_idle,
            owner: timers.owner,
        };
        sharing(&args, &cwd, &ladder, policy, timers.start_timeout, &origin)
    });
    let spec = Spec {
        command: args.command,
        cwd: args.cwd,
        ladder,
    };
    shim::run(spec, sharing, origin)
}

fn sharing(
    args: &Args,
    cwd: &Path,
    ladder: &Ladder,
    policy: Policy,
    start_timeout: Duration,
    origin: &Origin,
) -> Sharing {
    let env: Vec<(OsString, OsString)> = std::env::vars_os().collect();
    let cwd = std::path::absolute(cwd).unwrap_or_else(|_| cwd.to_owned());
    let key = key::of(Ingredients {
        command: &args.command,
        cwd: &cwd,
        env: &env,
        env_key: args.env_key.as_deref(),
    });
    let me = ProcessRef::me().map(|me| *me.identity());
    let hello = ClientHello {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        protocol: PROTOCOL,
        pid: std::process::id(),
        identity: me.map(|identity| identity.to_string()).unwrap_or_default(),
        app: app(origin),
        session: random_word(),
        spec: hello::Spec {
            command: args.command.iter().map(|word| text(word)).collect(),
            cwd: text(cwd.as_os_str()),
            ladder: (millis(ladder.after_eof), millis(ladder.after_term)),
        },
        env: env
            .iter()
            .map(|(name, value)| (text(name), text(value)))
            .collect(),
    };
    Sharing {
        key: key.hex,
        hello,
        policy,
        start_timeout,
    }
}

/// The app behind the launchers, as far as it can be seen.
fn app(origin: &Origin) -> Option<hello::App> {
    let Ok(Starter::Watch(watched)) = origin else {
        return None;
    };
    let of = |role| watched.iter().find(|watched| watched.role == role);
    let process = &of(Role::App).or_else(|| of(Role::Parent))?.process;
    let name = std::fs::read_to_string(format!("/proc/{}/comm", process.pid())).ok()?;
    Some(hello::App {
        pid: process.pid(),
        name: name.trim_end().to_owned(),
    })
}

fn text(word: &OsStr) -> Text {
    Text::from(word.as_bytes())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

fn random_word() -> String {
    let mut bytes = [0u8; 16];
    let filled = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty());
    filled.expect("the system has random numbers");
    format!("{:032x}", u128::from_ne_bytes(bytes))
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
