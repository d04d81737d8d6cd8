//! The builder of a guard.

use std::ffi::OsString;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use kennel_core::lifetime::{self, Policy};
use kennel_sys::env;
use kennel_sys::lock::Mode;
use kennel_sys::starter::{self, Starter};

use crate::guard::Guard;
use crate::owner::{self, Owner};
use crate::refusal::Refusal;
use crate::store::{HeldAt, Seized, Store};
use crate::watch::Watch;

/// The variable that disables the watch over the process that started us; see [`starter::watch_enabled`].
const PARENT_WATCH: &str = "KENNEL_PARENT_WATCH";

/// Configures a [`Guard`]. Made by [`Guard::builder`].
#[derive(Debug)]
#[must_use = "the guard starts with `acquire`"]
pub struct GuardBuilder {
    name: String,
    starter: io::Result<Starter>,
    store: Option<PathBuf>,
    mode: Mode,
    legacy: Vec<PathBuf>,
    owner_flag: Option<String>,
    owner_variable: Option<OwnerVariable>,
    watch_parent: bool,
    catch_signals: bool,
    policy: Policy,
}

#[derive(Debug)]
struct OwnerVariable {
    name: String,
    value: OsString,
    scrubbed: bool,
}

impl GuardBuilder {
    pub(crate) fn new(name: &str) -> GuardBuilder {
        GuardBuilder {
            // First, before the answer can change (lesson 19).
            starter: starter::capture(),
            name: name.to_owned(),
            store: None,
            mode: Mode::Exclusive,
            legacy: Vec::new(),
            owner_flag: None,
            owner_variable: None,
            watch_parent: true,
            catch_signals: true,
            policy: Policy {
                linger: None,
                grace: lifetime::GRACE,
                max_idle: None,
            },
        }
    }

    /// The store that this server writes: the scope of its lock. It need not exist yet. All spellings of a path, in all
    /// environments of a user, are the same store.
    pub fn store(mut self, path: impl AsRef<Path>) -> Self {
        self.store = Some(path.as_ref().to_owned());
        self
    }

    /// No other process may have the store: the default.
    pub fn exclusive(mut self) -> Self {
        self.mode = Mode::Exclusive;
        self
    }

    /// Allows other processes that also coexist to hold the store, but no exclusive one.
    pub fn coexist(mut self) -> Self {
        self.mode = Mode::Shared;
        self
    }

    /// The lock file of older releases of this server. If it is missing, it is not created. If an older release holds it,
    /// the guard is refused; otherwise the guard keeps older releases out while it lives.
    pub fn legacy_lock(mut self, path: impl AsRef<Path>) -> Self {
        self.legacy.push(path.as_ref().to_owned());
        self
    }

    /// The owner from the command line: a pid. An invalid value refuses the guard. It takes precedence over
    /// [`owner_from_env`](Self::owner_from_env).
    pub fn owner(mut self, pid: impl Into<String>) -> Self {
        self.owner_flag = Some(pid.into());
        self
    }

    /// The owner from an environment variable, which is removed, so that no child process inherits it. An invalid value is
    /// ignored, with a [notice](Guard::notices).
    ///
    /// Call it before there are other threads: otherwise the variable has to stay, and a notice says so.
    pub fn owner_from_env(mut self, name: &str) -> Self {
        self.owner_variable = kennel_sys::env::take(name).map(|taken| OwnerVariable {
            name: name.to_owned(),
            value: taken.value,
            scrubbed: taken.scrubbed,
        });
        self
    }

    /// Whether to end with the process that started us (default: yes). `KENNEL_PARENT_WATCH=off` disables it too.
    pub fn watch_parent(mut self, watch: bool) -> Self {
        self.watch_parent = watch;
        self
    }

    /// Whether SIGTERM, SIGINT and SIGHUP start the shutdown (default: yes). A second signal, a second later or more, has
    /// its default effect: it ends a server that hangs during shutdown.
    pub fn catch_signals(mut self, catch: bool) -> Self {
        self.catch_signals = catch;
        self
    }

    /// How long to live without a [`Lease`](crate::Lease). If it is not set, the server does not end for that reason.
    pub fn linger(mut self, linger: Duration) -> Self {
        self.policy.linger = Some(linger);
        self
    }

    /// How long the owner must be gone, without any lease, before the server ends (default: 5 s).
    pub fn grace(mut self, grace: Duration) -> Self {
        self.policy.grace = grace;
        self
    }

    /// The time after which a lease without [traffic](crate::Lease::traffic) counts as dead. Not set: never. Set it only if
    /// every lease reports its traffic.
    pub fn max_idle(mut self, max_idle: Duration) -> Self {
        self.policy.max_idle = Some(max_idle);
        self
    }

    /// Takes the store and starts the watch, or returns at once why not and which process is in the way.
    pub fn acquire(mut self) -> Result<Guard, Refusal> {
        let mut notices = Vec::new();
        let owner = self.captured_owner(&mut notices)?;
        let starter = self.watched_starter(&mut notices);
        let held = match &self.store {
            Some(path) => Some(Store::at(path, &self.legacy)?.take(self.mode, &self.name)?),
            None => None,
        };
        let watch = Watch::new(self.policy, owner, starter, self.catch_signals)
            .map_err(Refusal::io("watch signals and processes"))?;
        Guard::start(watch, held, notices).map_err(Refusal::io("start the watching thread"))
    }

    /// The holders of the store, at its own lock or a legacy one. Creates nothing.
    pub fn probe(&self) -> Result<Vec<HeldAt>, Refusal> {
        self.required_store()?.probe()
    }

    /// The existing files of the store's lock, which [`Seized::remove_runtime`] removes. Creates nothing.
    pub fn runtime_files(&self) -> Result<Vec<PathBuf>, Refusal> {
        self.required_store()?.runtime_files()
    }

    /// Takes the store at all its locks, exclusively, for a destructive operation; or returns the holder.
    pub fn seize(&self) -> Result<Seized, Refusal> {
        self.required_store()?.seize()
    }

    fn required_store(&self) -> Result<Store, Refusal> {
        let unnamed = || io::Error::new(io::ErrorKind::InvalidInput, "no store was set");
        let path = self.store.as_ref().ok_or_else(unnamed);
        Store::at(path.map_err(Refusal::io("find the store"))?, &self.legacy)
    }

    fn captured_owner(&self, notices: &mut Vec<String>) -> Result<Option<Owner>, Refusal> {
        if let Some(OwnerVariable {
            name,
            scrubbed: false,
            ..
        }) = &self.owner_variable
        {
            notices.push(format!(
                "{name} stays in the environment because other threads run: child processes inherit it"
            ));
        }
        let named = match (&self.owner_flag, &self.owner_variable) {
            (Some(flag), _) => Some(owner::parse(flag)?),
            (None, Some(variable)) => match owner::parse(&variable.value.to_string_lossy()) {
                Ok(named) => Some(named),
                Err(error) => {
                    notices.push(format!("{} is ignored: {error}", variable.name));
                    None
                }
            },
            (None, None) => None,
        };
        let Some(named) = named else {
            return Ok(None);
        };
        match named.capture() {
            Ok(owner) => Ok(Some(owner)),
            Err(error) if error.kind() == io::ErrorKind::Unsupported => {
                notices.push(format!("the owner is not watched: {error}"));
                Ok(None)
            }
            Err(error) => Err(Refusal::io("check the owner")(error)),
        }
    }

    fn watched_starter(&mut self, notices: &mut Vec<String>) -> Starter {
        let switch = std::env::var_os(PARENT_WATCH).filter(|switch| !switch.is_empty());
        if let Some(odd) = switch.as_ref().filter(|it| env::switch(it).is_none()) {
            notices.push(format!(
                "{PARENT_WATCH} is ignored, so this server ends with its app: {odd:?} is neither on nor off"
            ));
        }
        if !self.watch_parent || !starter::watch_enabled(switch.as_deref()) {
            return Starter::NoProcess;
        }
        let captured = std::mem::replace(&mut self.starter, Ok(Starter::NoProcess));
        captured.unwrap_or_else(|error| {
            notices.push(format!(
                "cannot find the process that started this server, so only EOF ends it: {error}"
            ));
            Starter::NoProcess
        })
    }
}
