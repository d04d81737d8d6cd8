//! `kennel run`: a stdio server behind a shim.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::process::{Command, ExitCode};
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
use crate::key::variables::{self, Ecosystem, Question};
use crate::key::{self, Ingredients};
use crate::known_variables;
use crate::random_word::random_word;
use crate::sharing::{self, Decision, Fate, Remembered, Rule, ServersToml, Wish, eras, table};
use crate::shim::{self, Origin, Sharing, Spec};
use crate::start_error::{self, Attempt};
use crate::this_build;
use crate::timers::{self, Timers};
use crate::values;

/// Exit code for "nothing found".
const NOTHING: u8 = 3;
/// Exit code for a server that is there and cannot be started.
const CANNOT_START: u8 = 126;

#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Whether sessions share one server
    #[arg(long, value_enum, default_value = "auto", value_name = "WHEN")]
    share: Share,

    /// Ask the server for every list anew
    ///
    /// Else lists of tools, prompts and resources are asked for once and kept for all who share the server,
    /// for as long as the protocol allows.
    #[arg(long)]
    no_cache: bool,

    /// Which requests are sent again when the server dies under them: safe, all or none [default: safe]
    ///
    /// safe: what does no harm a second time, which is lists, reads, prompts, completions, and calls of tools
    /// that the server itself calls read-only or idempotent. all: everything; for servers whose every
    /// call may be made twice. none: nothing. What is not sent again is answered with an error that says that
    /// its outcome is unknown. What never reached the server is always sent, and what was cancelled never.
    #[arg(long, value_name = "WHAT")]
    replay: Option<String>,

    /// What becomes of a server whose program, script or package changed on disk: replace or keep
    ///
    /// replace: when nobody waits for it, it is stopped, and its sessions go on with a new one; what it kept in memory
    /// is gone. keep: it goes on, and `kennel ps` calls it stale. [default: replace where sessions share it,
    /// keep where it is one session's own]
    #[arg(long, value_name = "WHAT")]
    on_change: Option<String>,

    /// Start the server in this directory
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,

    /// The only environment variables that tell one daemon from another, beside those named like credentials
    #[arg(long, value_name = "A,B")]
    env_key: Option<OsString>,

    #[command(flatten)]
    timers: Timers,

    /// A server by its name in servers.toml
    #[arg(
        required_unless_present = "command",
        conflicts_with = "command",
        value_parser = NonEmptyStringValueParser::new()
    )]
    name: Option<String>,

    /// The server and its arguments
    #[arg(last = true, value_name = "COMMAND")]
    command: Vec<OsString>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Share {
    /// What is known to be safe; else each session has a server of its own
    Auto,
    /// One server for all sessions with the same key
    Always,
    /// A server for each session
    Never,
}

pub(crate) fn run(mut args: Args, origin: Origin) -> ExitCode {
    let off = values::kennel_is_off();
    if off && args.name.is_none() {
        return become_the_server(&args);
    }
    known_variables::warn_of_misspelled();
    let config = ServersToml::of_user();
    if let Err(error) = args.take_name(&config) {
        crate::fail(&error);
        return ExitCode::from(NOTHING);
    }
    if off {
        return become_the_server(&args);
    }
    args.timers.fill(config.timers_for(&args.command));
    let settled = args.timers.settle().and_then(|timers| {
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
        Err(error) => {
            crate::fail(&error);
            return ExitCode::from(2);
        }
    };
    let ladder = Ladder {
        after_eof: timers.stop_after.0,
        after_term: timers.stop_after.1,
    };
    if let Some(cwd) = args.cwd.as_ref().filter(|cwd| !cwd.is_dir()) {
        let words = "is no directory: create it, or name another with --cwd";
        crate::fail(&format!("{} {words}", cwd.display()));
        return ExitCode::from(CANNOT_START);
    }
    let place = Place::of(&args, env_key.as_deref());
    let decision = place.decide(&args, &config);
    let sharing = decision.may_share().then(|| Sharing {
        key: place.key.clone(),
        former: Arc::new(FormerKey::new(args.cwd.is_some())),
        hello: Arc::new(place.hello(&args, &timers, &decision, replace, &origin)),
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
    let spec = Spec {
        command: args.command,
        cwd: args.cwd,
        ladder,
        detached: timers.detached,
        replay,
        hibernate: timers.hibernate,
        max_line: timers.max_line,
        replace: replace.unwrap_or(false),
        key: place.key,
        why_solo: sharing.is_none().then_some(decision.why),
    };
    shim::run(spec, sharing, origin)
}

impl Args {
    /// Replaces a name by what `servers.toml` says it runs.
    fn take_name(&mut self, config: &ServersToml) -> Result<(), String> {
        let Some(name) = &self.name else {
            return Ok(());
        };
        let Some(named) = config.named(name) else {
            let known: Vec<&str> = config
                .all_named()
                .map(|named| named.name.as_str())
                .collect();
            let known = match known.is_empty() {
                true => "none has a name there".to_owned(),
                false => format!("there are {}", known.join(", ")),
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

/// The environment. Of a variable that is set twice, the first value counts, as for every program that asks for it by name.
fn environment() -> Vec<(OsString, OsString)> {
    let mut names = HashSet::new();
    let all = std::env::vars_os();
    all.filter(|(name, _)| names.insert(name.clone())).collect()
}

/// Where the server is to run, and which daemon would be its.
struct Place {
    cwd: PathBuf,
    env: Vec<(OsString, OsString)>,
    /// The names of the variables that count.
    names: Vec<OsString>,
    /// Those that somebody named.
    env_key: Option<Vec<OsString>>,
    key: String,
}

impl Place {
    fn of(args: &Args, env_key: Option<&[OsString]>) -> Place {
        let env = environment();
        let cwd = args.cwd.clone().or_else(|| std::env::current_dir().ok());
        let cwd = cwd.unwrap_or_else(|| PathBuf::from("/"));
        let cwd = std::path::absolute(&cwd).unwrap_or(cwd);
        let names = counted(&args.command, env_key, args.cwd.is_some(), &env);
        let what = Ingredients {
            command: &args.command,
            cwd: &cwd,
            env: &env,
            names: &names,
            env_key,
            cache: !args.no_cache,
        };
        let key = key::of(&what, confined::ours().ok());
        Place {
            cwd,
            env,
            names,
            env_key: env_key.map(<[OsString]>::to_vec),
            key,
        }
    }

    /// Whether this session may share. One that is confined so that nobody can compare it never does.
    fn decide(&self, args: &Args, config: &ServersToml) -> Decision {
        let decision = self.decide_unconfined(args, config);
        match confined::why_dedicated(confined::ours()) {
            Some(why) if decision.may_share() => decision.dedicated_because(why),
            _ => decision,
        }
    }

    fn decide_unconfined(&self, args: &Args, config: &ServersToml) -> Decision {
        let known = |remembered| {
            sharing::decide(&Wish {
                command: &args.command,
                config,
                remembered,
            })
        };
        match args.share {
            // How it is shared is no question of whether: others may share it by what is known.
            Share::Always => {
                let Decision { cache, in_turn, .. } = known(Remembered::default());
                Decision {
                    cache,
                    in_turn,
                    ..Decision::asked_for(Rule::Always)
                }
            }
            Share::Never => Decision::asked_for(Rule::Never),
            Share::Auto => {
                // Looking creates nothing.
                let user = RuntimeDir::find_of_user().ok().flatten();
                let remembered = user.map(|user| eras::recall(&user, &self.key));
                known(remembered.unwrap_or_default())
            }
        }
    }

    fn hello(
        &self,
        args: &Args,
        timers: &timers::Settled,
        decision: &Decision,
        replace: Option<bool>,
        origin: &Origin,
    ) -> ClientHello {
        let me = ProcessRef::my_identity();
        let shared = |fate| fate == Fate::Shared;
        let pair = |(name, value): &(OsString, OsString)| (text(name), text(value));
        let env = self.env.iter().map(pair).collect();
        ClientHello {
            version: this_build::version(),
            protocol: PROTOCOL,
            pid: std::process::id(),
            identity: me.map(|identity| identity.to_string()).unwrap_or_default(),
            app: origin.as_ref().ok().and_then(app),
            session: random_word().expect("the system has random numbers"),
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

/// The names of the variables that count for the key of this command.
pub(crate) fn counted(
    command: &[OsString],
    env_key: Option<&[OsString]>,
    cwd_given: bool,
    env: &[(OsString, OsString)],
) -> Vec<OsString> {
    let known = table::variables_of(command);
    variables::counted(Question {
        env,
        env_key,
        known: known.as_deref(),
        cwd_given,
        ecosystem: Ecosystem::of(command),
    })
}

/// The app behind the launchers, as far as it can be seen.
pub(crate) fn app(starter: &Starter) -> Option<hello::App> {
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

/// As if Kennel were not there.
fn become_the_server(args: &Args) -> ExitCode {
    let mut command = Command::new(&args.command[0]);
    command.args(&args.command[1..]);
    if let Some(cwd) = &args.cwd {
        command.current_dir(cwd);
    }
    let error = kennel_sys::program::become_program(&mut command);
    let path = std::env::var_os("PATH");
    let attempt = Attempt {
        program: &args.command[0],
        cwd: args.cwd.as_deref(),
        path: path.as_deref(),
    };
    let (code, words) = start_error::explain(attempt, error.raw_os_error().unwrap_or_default());
    crate::fail(&words);
    ExitCode::from(code)
}
