//! `kennel run`: runs a stdio server behind a shim.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::builder::NonEmptyStringValueParser;
use kennel_core::hello::{self, ClientHello, PROTOCOL, Text};
use kennel_core::lifetime;
use kennel_core::session::{Replay, UnknownReplay};
use kennel_sys::process::ProcessRef;
use kennel_sys::runtime_dir::RuntimeDir;
use kennel_sys::starter::{Role, Starter};
use kennel_sys::tree::Ladder;

use crate::confined;
use crate::election::{FormerKey, Policy};
use crate::exit_code::{CANNOT_START, NOTHING_FOUND, USAGE};
use crate::key::variables::{self, Ecosystem, VariableInput};
use crate::key::{self, KeyInput};
use crate::known_variables;
use crate::sharing::{
    self, Decision, EraFindings, Placement, Rule, ServersToml, SharingInput, eras, table,
};
use crate::shim::{self, FoundStarter, SessionSpec, Sharing};
use crate::start_error;
use crate::this_build;
use crate::timers::{self, Timers};
use crate::values;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Choose when sessions share a server
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    share: Share,

    /// Do not cache lists of tools, prompts and resources
    ///
    /// By default, a shared server is asked for each list once, and all its clients get the cached list for as long as the
    /// protocol allows.
    #[arg(long)]
    no_cache: bool,

    /// Retry these requests after a crash: safe, all or none [default: safe]
    ///
    /// safe: lists, reads, prompts, completions, and calls of tools that the server declares read-only or idempotent.
    /// all: every request, for servers whose calls may all be made twice. none: no request. A request that is not
    /// retried gets an error which says that its outcome is unknown. A request that never reached the server is always
    /// sent to the next one, a cancelled request never.
    #[arg(long, value_name = "WHAT")]
    replay: Option<String>,

    /// Replace or keep a server whose program, script or package changed on disk
    ///
    /// replace: stop the server when no request is in flight, and start the new one; its sessions go on, but its memory
    /// is lost. keep: let it run; `kennel ps` shows it as stale. [default: replace a shared server, keep a dedicated one]
    #[arg(long, value_name = "WHAT")]
    on_change: Option<String>,

    /// Start the server in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// Compare only these variables, and credentials, when deciding whether to share
    #[arg(long, value_name = "A,B")]
    env_key: Option<OsString>,

    #[command(flatten)]
    timers: Timers,

    /// The name of a server in servers.toml
    #[arg(
        required_unless_present = "command",
        conflicts_with = "command",
        value_parser = NonEmptyStringValueParser::new()
    )]
    name: Option<String>,

    /// The command of the server, with its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Share {
    /// Share servers that are known to be safe to share
    Auto,
    /// Share one server among all sessions with the same key
    Always,
    /// Start a dedicated server for each session
    Never,
}

pub(crate) fn run(mut args: Args, starter: FoundStarter) -> ExitCode {
    let off = values::kennel_is_off();
    if off && args.name.is_none() {
        return start_error::become_server(&args.command, args.cwd.as_deref());
    }
    known_variables::warn_of_misspelled();
    let config = ServersToml::of_user();
    if let Err(error) = args.resolve_name(&config) {
        return crate::fail_with(NOTHING_FOUND, &error);
    }
    if off {
        return start_error::become_server(&args.command, args.cwd.as_deref());
    }
    args.timers.fill(config.timers_for(&args.command));
    let settled = args.timers.resolve().and_then(|timers| {
        let replay = timers::value("replay", &args.replay, |word| {
            word.parse()
                .map_err(|error: UnknownReplay| error.to_string())
        })?;
        let replace = timers::value("on-change", &args.on_change, |word| match word {
            "replace" => Ok(true),
            "keep" => Ok(false),
            _ => Err(format!("{word:?} is neither replace nor keep")),
        })?;
        let env_key = args.env_key.as_deref().map(values::names).transpose();
        let env_key = env_key.map_err(|error| format!("--env-key: {error}"))?;
        Ok((timers, replay.unwrap_or_default(), replace, env_key))
    });
    let (timers, replay, replace, env_key): (_, Replay, _, _) = match settled {
        Ok(settled) => settled,
        Err(error) => return crate::fail_with(USAGE, &error),
    };
    let ladder = Ladder {
        after_eof: timers.stop_after.0,
        after_term: timers.stop_after.1,
    };
    if let Some(cwd) = args.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let problem = "is not a directory: create it, or give another one with --cwd";
        return crate::fail_with(CANNOT_START, &format!("{} {problem}", cwd.display()));
    }
    let context = ServerContext::of(&args, env_key.as_deref());
    let decision = context.decide(&args, &config);
    let sharing = decision.may_share().then(|| Sharing {
        key: context.key.clone(),
        former: Arc::new(FormerKey::new(args.cwd.is_some())),
        hello: Arc::new(context.hello(&args, &timers, &decision, replace, &starter)),
        policy: Policy {
            linger: timers.linger.unwrap_or(lifetime::SHARED_LINGER),
            grace: timers.grace,
            max_idle: timers.max_idle,
            owner: timers.owner,
            max_line: timers.max_line,
        },
        start_timeout: timers.start_timeout,
        why: decision.why.clone(),
    });
    let spec = SessionSpec {
        command: args.command,
        cwd: args.cwd,
        ladder,
        detached: timers.detached,
        replay,
        hibernate: timers.hibernate,
        max_line: timers.max_line,
        replace: replace.unwrap_or(false),
        key: context.key,
        why_solo: sharing.is_none().then_some(decision.why),
    };
    shim::run(spec, sharing, starter)
}

impl Args {
    /// Sets the command, directory and variables of a server that is named in `servers.toml`.
    fn resolve_name(&mut self, config: &ServersToml) -> Result<(), String> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let Some(named) = config.named(name) else {
            let known: Vec<&str> = config
                .all_named()
                .map(|named| named.name.as_str())
                .collect();
            let known = match known.is_empty() {
                true => "it defines no names".to_owned(),
                false => format!("the names are {}", known.join(", ")),
            };
            return Err(format!(
                "no server is called {name} in servers.toml ({known}); to run a program, write `kennel run -- {name}`"
            ));
        };
        self.command = named.command.iter().map(OsString::from).collect();
        self.cwd = self.cwd.take().or_else(|| named.cwd.clone());
        let names = named.env_key.as_ref();
        let names = names.map(|names| OsString::from(names.join(",")));
        self.env_key = self.env_key.take().or(names);
        Ok(())
    }
}

/// The environment. If a variable is set twice, the first value is used, as by every program that reads it by name.
fn environment() -> Vec<(OsString, OsString)> {
    let mut names = HashSet::new();
    let all = std::env::vars_os();
    all.filter(|(name, _)| names.insert(name.clone())).collect()
}

/// The directory and environment of the server, and the key of its daemon.
struct ServerContext {
    cwd: PathBuf,
    env: Vec<(OsString, OsString)>,
    /// The names of the variables in the key.
    names: Vec<OsString>,
    /// The names given with `--env-key`.
    env_key: Option<Vec<OsString>>,
    key: String,
}

impl ServerContext {
    fn of(args: &Args, env_key: Option<&[OsString]>) -> ServerContext {
        let env = environment();
        let cwd = args.cwd.clone().or_else(|| std::env::current_dir().ok());
        let cwd = cwd.unwrap_or_else(|| PathBuf::from("/"));
        let cwd = std::path::absolute(&cwd).unwrap_or(cwd);
        let names = key_variables(&args.command, env_key, args.cwd.is_some(), &env);
        let what = KeyInput {
            command: &args.command,
            cwd: &cwd,
            env: &env,
            names: &names,
            env_key,
            cache: !args.no_cache,
        };
        let key = key::of(&what, confined::ours().ok());
        ServerContext {
            cwd,
            env,
            names,
            env_key: env_key.map(<[OsString]>::to_vec),
            key,
        }
    }

    /// Decides whether this session may share. A session whose confinement cannot be compared never does.
    fn decide(&self, args: &Args, config: &ServersToml) -> Decision {
        let decision = self.decide_ignoring_confinement(args, config);
        match confined::why_dedicated(confined::ours()) {
            Some(why) if decision.may_share() => decision.make_dedicated(why),
            _ => decision,
        }
    }

    fn decide_ignoring_confinement(&self, args: &Args, config: &ServersToml) -> Decision {
        let known = |remembered| {
            sharing::decide(&SharingInput {
                command: &args.command,
                config,
                remembered,
            })
        };
        match args.share {
            // `always` only decides that it is shared; `cache` and `in_turn` still depend on the server.
            Share::Always => {
                let Decision { cache, in_turn, .. } = known(EraFindings::default());
                Decision {
                    cache,
                    in_turn,
                    ..Decision::asked_for(Rule::Always)
                }
            }
            Share::Never => Decision::asked_for(Rule::Never),
            Share::Auto => {
                // Does not create the directory.
                let user = RuntimeDir::find_of_user().ok().flatten();
                let remembered = user.map(|user| eras::load(&user, &self.key));
                known(remembered.unwrap_or_default())
            }
        }
    }

    fn hello(
        &self,
        args: &Args,
        timers: &timers::TimerValues,
        decision: &Decision,
        replace: Option<bool>,
        starter: &FoundStarter,
    ) -> ClientHello {
        let me = ProcessRef::my_identity();
        let shared = |placement| placement == Placement::Shared;
        let pair = |(name, value): &(OsString, OsString)| (text(name), text(value));
        let env = self.env.iter().map(pair).collect();
        ClientHello {
            version: this_build::version(),
            protocol: PROTOCOL,
            pid: std::process::id(),
            identity: me.map(|identity| identity.to_string()).unwrap_or_default(),
            app: starter.as_ref().ok().and_then(find_app),
            session: kennel_sys::random::hex_id().expect("the system has random numbers"),
            spec: hello::Spec {
                command: args.command.iter().map(|word| text(word)).collect(),
                cwd: text(self.cwd.as_os_str()),
                ladder: (millis(timers.stop_after.0), millis(timers.stop_after.1)),
                cache: decision.cache && !args.no_cache,
                in_turn: decision.in_turn,
                hibernate: timers.hibernate.map(millis),
                replace: replace.unwrap_or(true),
                detached: Some(timers.detached.to_string()),
            },
            env: Arc::new(env),
            shares: hello::Shares {
                legacy: shared(decision.legacy),
                modern: shared(decision.modern),
            },
            build: this_build::text(),
            program: text(this_build::program().unwrap_or_default().as_os_str()),
            pipes: true,
            key: Some(hello::KeyFields {
                version: key::VERSION,
                names: self.names.iter().map(|name| text(name)).collect(),
                env_key: self
                    .env_key
                    .as_ref()
                    .map(|names| names.iter().map(|name| text(name)).collect()),
                no_cache: args.no_cache,
            }),
        }
    }
}

/// The names of the variables in the key of this command.
pub(crate) fn key_variables(
    command: &[OsString],
    env_key: Option<&[OsString]>,
    cwd_given: bool,
    env: &[(OsString, OsString)],
) -> Vec<OsString> {
    let known = table::variables_of(command);
    variables::counted(VariableInput {
        env,
        env_key,
        known: known.as_deref(),
        cwd_given,
        ecosystem: Ecosystem::of(command),
    })
}

/// The app that started the launchers, if its process can be read.
pub(crate) fn find_app(starter: &Starter) -> Option<hello::App> {
    let Starter::Watch(watched) = starter else {
        return None;
    };
    let of = |role| watched.iter().find(|watched| watched.role == role);
    let process = &of(Role::App).or_else(|| of(Role::Parent))?.process;
    Some(hello::App {
        pid: process.pid(),
        name: process.name()?,
    })
}

fn text(word: &OsStr) -> Text {
    Text::from(word.as_encoded_bytes())
}

fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}
